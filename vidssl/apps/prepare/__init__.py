"""Data sets to lists: one module for each data set or list format."""

from vidssl.apps.prepare.folder import prepare_folder as prepare_folder
from vidssl.apps.prepare.official_sets import prepare_hmdb51 as prepare_hmdb51
from vidssl.apps.prepare.official_sets import prepare_kinetics as prepare_kinetics
from vidssl.apps.prepare.official_sets import prepare_ssv2 as prepare_ssv2
from vidssl.apps.prepare.official_sets import prepare_trackingnet as prepare_trackingnet
from vidssl.apps.prepare.official_sets import prepare_ucf101 as prepare_ucf101
from vidssl.apps.prepare.other_projects import FORMS as FORMS
from vidssl.apps.prepare.other_projects import prepare_chunks as prepare_chunks
from vidssl.apps.prepare.other_projects import prepare_list as prepare_list
from vidssl.apps.prepare.torchvision_sets_and_digits import prepare_moving_digits as prepare_moving_digits
from vidssl.apps.prepare.torchvision_sets_and_digits import prepare_torchvision as prepare_torchvision
from vidssl.apps.prepare.torchvision_sets_and_digits import prepare_voc_classes as prepare_voc_classes

_PUBLIC = ["FORMS", *(name for name in globals() if name.startswith("prepare_"))]  # in the docs
