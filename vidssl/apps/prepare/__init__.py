"""Data sets to lists: one module for each data set or list format."""

from vidssl.apps.prepare.folder import prepare_folder
from vidssl.apps.prepare.official_sets import (
    prepare_hmdb51,
    prepare_kinetics,
    prepare_ssv2,
    prepare_trackingnet,
    prepare_ucf101,
)
from vidssl.apps.prepare.other_projects import FORMS, prepare_chunks, prepare_list
from vidssl.apps.prepare.torchvision_sets_and_digits import (
    prepare_moving_digits,
    prepare_torchvision,
    prepare_voc_classes,
)

__all__ = [
    "FORMS",
    "prepare_chunks",
    "prepare_folder",
    "prepare_hmdb51",
    "prepare_kinetics",
    "prepare_list",
    "prepare_moving_digits",
    "prepare_ssv2",
    "prepare_torchvision",
    "prepare_trackingnet",
    "prepare_ucf101",
    "prepare_voc_classes",
]
