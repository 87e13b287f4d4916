"""The tests: a folder for each package, one for the pages, and one for the whole."""

import pytest

pytest.register_assert_rewrite("tests.support")  # so that an assert of a helper too says what it found
