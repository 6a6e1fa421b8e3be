r"""Set results beside the published numbers, one table for each data set, with notes where the protocols differ.

python tools/report.py output/weizmann output/ucf101 --out output/report
python tools/report.py docs/results --into docs/reproduce.md
"""

from vidssl.commands.cli import guarded, report

if __name__ == "__main__":
    guarded(report)
