"""Owns the throw-away process that fetches Java libraries through Spark's own Ivy.

`python -m ematix_flow.streams.ivy FOLDER G:A:V ...` is a process of its own because the caller may already hold a
session, and that one cannot be given another Ivy folder. Each library is written below FOLDER and its coordinate is
printed as soon as it is there.
"""

import sys

FETCHED = "fetched "  # marks our lines among what Java may print


def main(folder: str, coordinates: list[str]) -> None:
    """Resolve every coordinate, without its dependencies, into `folder`/jars."""
    from pyspark.sql import SparkSession

    settings = {
        "spark.jars.ivy": folder,
        # Ivy trusts ~/.m2, where Maven may have left a description without its library, and then gives up.
        "spark.driver.defaultJavaOptions": f'"-Duser.home={folder}"',
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.sql.warehouse.dir": f"{folder}/warehouse",
    }
    builder = SparkSession.builder.master("local[1]").appName("ematix-flow jars")
    for key, value in settings.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    for coordinate in coordinates:
        session.sql(f"ADD JAR ivy://{coordinate}?transitive=false")
        print(f"{FETCHED}{coordinate}", flush=True)
    session.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
