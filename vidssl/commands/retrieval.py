"""The command `retrieval`."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from vidssl.commands.arguments import add_network_options, at_least, network_options, parse, print_results


def retrieval(arguments: Sequence[str] | None = None, prog: str | None = None) -> None:
    """Search a gallery with a list of queries or one video: R@k, kNN accuracy, and a page with the results."""
    parser = argparse.ArgumentParser(prog=prog, description=retrieval.__doc__)
    option = parser.add_argument
    add_network_options(parser)
    option("--gallery", type=Path, help="video list to search in; optional with an --index")
    option("--query", type=Path, required=True, help="video list of the queries, or one video")
    option("--index", type=Path, help="folder with the features of the gallery; extracted if it does not exist")
    option("--out", type=Path, required=True, help="folder for results.json and index.html")
    option("--center", action="store_true", help="subtract the mean of each list first")
    option("--k", type=at_least(1), default=10, help="neighbours for kNN, or results for one video (default 10)")
    option(
        "--drop-duplicates",
        action="store_true",
        help="ignore gallery videos whose features equal the query's bit by bit (copies of the file)",
    )
    option("--page-queries", type=at_least(0), default=48, help="queries on the page (default 48)")
    parsed = parse(parser, arguments)
    if parsed.gallery is None and parsed.index is None:
        parser.error("--gallery LIST or --index FOLDER is required")
    from vidssl.commands.search_gallery import find, is_video, retrieve, table

    one = is_video(parsed.query)
    if parsed.center and one:
        parser.error("--center needs a list of queries: the mean of one video is the video itself")
    paths = parsed.gallery, parsed.query, parsed.out
    rest = {"index": parsed.index, "k": parsed.k, "drop_duplicates": parsed.drop_duplicates}
    if one:
        results = find(network_options(parsed), *paths, **rest)
    else:
        rest |= {"center": parsed.center, "shown_queries": parsed.page_queries}
        results = retrieve(network_options(parsed), *paths, **rest)
    print_results(parsed, results, table(results), parsed.out / "index.html")
