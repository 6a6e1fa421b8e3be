"""Messages are one line, whatever the names in them hold."""

import pickle

import pytest

from vidssl.base import errors
from vidssl.base.errors import VidsslError

KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, VidsslError)]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_line_breaks_in_names_are_escaped(kind):
    error = kind("a\nb.mp4 and c\r\nd.mp4: no such file")
    for one in (error, pickle.loads(pickle.dumps(error))):
        assert type(one) is kind and str(one) == r"a\nb.mp4 and c\r\nd.mp4: no such file"
