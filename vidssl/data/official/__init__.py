"""The lists that data sets come with, and those of other projects, to vidssl's own: one file for each form."""

from vidssl.data.official.hmdb51 import prepare_hmdb51
from vidssl.data.official.kinetics import prepare_kinetics
from vidssl.data.official.listing import Counts, Report
from vidssl.data.official.pascal_parts import prepare_pascal_parts
from vidssl.data.official.projects import FORMS, prepare_list
from vidssl.data.official.ssv2 import prepare_ssv2
from vidssl.data.official.torchvision_sets import prepare_torchvision
from vidssl.data.official.trackingnet import prepare_trackingnet
from vidssl.data.official.ucf101 import prepare_ucf101

__all__ = [
    "FORMS",
    "Counts",
    "Report",
    "prepare_hmdb51",
    "prepare_kinetics",
    "prepare_list",
    "prepare_pascal_parts",
    "prepare_ssv2",
    "prepare_torchvision",
    "prepare_trackingnet",
    "prepare_ucf101",
]
