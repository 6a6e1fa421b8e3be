"""The terms of pages, explained: on hover, by the keyboard, and in a list at the end of a page."""

import re

from markupsafe import Markup, escape

TERMS = {
    "R@1": "Recall at 1: the percentage of the tested videos whose most similar training video, by the cosine of "
    "the features, is of the same class.",
    "R@5": "The percentage of the tested videos with a video of their class among the 5 most similar training "
    "videos. R@10, R@20 … are of 10, 20 … videos. The more, the higher the percentage that guessing reaches.",
    "kNN": "k nearest neighbours: the class is predicted by a vote of the 10 most similar training videos, and the "
    "percentage of right predictions is shown. Nothing is trained.",
    "classifier": "The classifier that the network was trained with: the percentage of tested videos whose class it "
    "predicts.",
    "mean of classes": "The mean of the percentages of the classes: each class counts the same, however many videos "
    "it has.",
    "ECE": "Expected calibration error: by how many points the classifier's stated probabilities differ from how "
    "often it is right. 0 is best.",
    "guessing": "What one gets without looking at the video: one of two directions.",
    "majority": "What one gets without looking at the video, by always answering the most frequent class: its share "
    "of the tested videos. A mean of classes is 1 / classes then.",
    "95 % interval": "The values that fit these videos: measured on other recordings of the same kind, the number "
    "of this network lies in 95 of 100 such intervals. Another training run is another network, and not covered.",
    "recordings": "Videos that were cut from one recording are alike and count as one for intervals. Where names do "
    "not state recordings, each file is one.",
    "untrained": "The same network with the random weights from which training starts. What it reaches is not learned.",
    "features": "The numbers that the network makes of a video. Similar videos should have similar features.",
    "uniformity": "How evenly the features are spread over all directions: 0 is collapse, when all videos have the "
    "same feature, and about 4 is even. Minus the log of the mean of exp(−2 d²) over pairs of videos at distance d.",
    "uniformity of a class": "The uniformity among the videos of one class, a mean over classes.",
    "distance within": "Mean squared distance of the features of two videos of one class. Features have length 1: 0 "
    "is equal, 2 unrelated, 4 opposite. The smaller, the better aligned a class is.",
    "distance between": "The same for two videos of different classes.",
    "ratio": "Distance between classes, divided by distance within a class. 1 means that classes are not separated.",
    "invariance score": "How reliably the 10 units (single numbers of the feature) that fit a class best respond to "
    "its clips, and only to them, while the clips are changed. 1 is a unit that ignores the clip.",
    "unchanged": "The invariance score of the clips as they are: the most that a change can leave.",
    "shuffled labels": "The same score after the classes were exchanged at random: what the best of many units "
    "reach by chance. The highest of 39 such draws is shown.",
    "perfect": "The invariance score of units that respond to all clips of their class and to nothing else.",
    "severity": "How strong a corruption is, from 1 to 5.",
    "mPC": "Mean performance under corruption: the percentage of right videos, a mean over all corruptions and "
    "severities.",
    "rPC": "Relative performance under corruption: mPC as a percentage of the performance on clean videos.",
    "clean": "The tested videos as they are.",
    "background gap": "Right before a background of the same class, minus right before one of another class, in "
    "points.",
    "shortcut": "Classified as the class of the video that the background is from.",
    "Grad-CAM": "A map of where in the clip the network finds what raises a score, here the similarity to the most "
    "similar video or the probability of the predicted class. Red is most, blue none.",
    "heat": "The values of a Grad-CAM map. A map without heat has no place that raises the score: Grad-CAM keeps "
    "what raises it only, and here all weighted maps of the layer lower it.",
    "limit of the cells": "The heat in the boxes of a map that follows the boxes exactly, with the map's coarse cells.",
}
_NAMED = re.compile(
    rf"(?<![\w@])(?:{'|'.join(re.escape(term) for term in sorted(TERMS, key=len, reverse=True))})(?!\w)"
)


def with_terms(text: str) -> Markup:
    """Return a text as HTML whose terms are links to their explanations, each the first time."""
    seen: set[str] = set()

    def linked(match: re.Match[str]) -> str:
        term = match[0]
        if term in seen:
            return str(escape(term))
        seen.add(term)
        key = term_key(term)
        return f'<a class="term" href="#term-{key}" aria-describedby="about-{key}">{escape(term)}</a>'

    parts, end = [], 0
    for match in _NAMED.finditer(text):
        parts += [str(escape(text[end : match.start()])), linked(match)]
        end = match.end()
    return Markup("".join([*parts, str(escape(text[end:]))]).replace(" %", "\u00a0%"))


def term_key(term: str) -> str:
    """Return what an id of the page can hold."""
    return re.sub(r"\W+", "-", term.replace("@", "-at-").replace("%", "percent")).strip("-").lower()
