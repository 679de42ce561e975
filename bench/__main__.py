"""`make bench`: every benchmark, one after the other."""

from bench import files

if __name__ == "__main__":
    files.main()
