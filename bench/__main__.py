"""`make bench`: every benchmark, one after the other."""

from bench import bad_rows, files

if __name__ == "__main__":
    files.main()
    bad_rows.main()
