"""The command `prepare`: write the lists of a data set. Each script in datasets/ runs it for one of them."""

import argparse
import sys
from pathlib import Path

from vidssl.commands import guarded, prepare_parsers
from vidssl.commands.arguments import apply_quiet, errors_in_options, in_options, print_results


def run_script(dataset: str) -> None:
    """Run the command of one data set with the arguments of a script."""
    parser = prepare_parsers.prepare(argparse.ArgumentParser())[dataset]
    parser.prog = Path(sys.argv[0]).name
    parsed = parser.parse_args()

    def work() -> None:
        with errors_in_options(parsed):
            run(parsed)

    guarded(work)


def run(parsed: argparse.Namespace) -> None:
    """Write the lists of a data set and print the report."""
    apply_quiet(parsed)
    options = {name: value for name, value in vars(parsed).items() if name not in ("quiet", "json")}
    dataset, out = options.pop("dataset"), options.pop("out")
    if dataset == "moving-digits":
        from vidssl.config import bind
        from vidssl.data.synthetic.moving_digits import MovingDigits, ensure

        settings = bind(MovingDigits, options, "moving-digits")
        action = "rendered" if ensure(out, settings) else "found"
        lists = sorted(map(str, out.glob("*/*.csv")))
        report = [f"{action} {settings.train} training and {settings.test} test videos in {out}", *lists]
    else:
        import vidssl.prepare

        text = getattr(vidssl.prepare, f"prepare_{dataset.replace('-', '_')}")(out=out, **options)
        report = [*in_options(text, parsed).splitlines(), f"lists written to {out}"]
    print_results(parsed, {"out": out, "report": report}, *report)
