"""Python imports this when it starts: modules that LACKING names are not there."""

import os
import sys

LACKING = set(os.environ["LACKING"].split(","))


class Refusing:
    """Finds nothing, and refuses some."""

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in LACKING:
            raise ModuleNotFoundError(f"No module named {name!r}: it is not installed with these extras", name=name)


sys.meta_path.insert(0, Refusing())
