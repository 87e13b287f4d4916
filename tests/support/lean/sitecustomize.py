"""Python imports this when it starts: modules that LACKING names are not there."""

import os
import sys

LACKING = set(os.environ["LACKING"].split(","))


class Without:
    """A finder of modules that finds all but these."""

    def __init__(self, finder):
        self.finder = finder

    def __getattr__(self, name):
        return getattr(self.finder, name)

    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in LACKING else self.finder.find_spec(name, path, target)


sys.meta_path[:] = map(Without, sys.meta_path)
