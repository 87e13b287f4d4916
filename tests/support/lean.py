"""What is installed with the project and some of its extras, and processes that can import nothing else.

The tests have more installed than users have: a package that nobody declared would be missed on their machines only.
"""

from __future__ import annotations

import os
from functools import cache
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

HERE = Path(__file__).parent / "lean"  # its sitecustomize.py refuses the modules that LACKING names


@cache
def installed_with(*extras: str) -> frozenset[str]:
    """The modules that come with the project and some of its extras, and with what these bring along."""
    wanted, found = [f"statehouse[{','.join(extras)}]"], set()
    while wanted:
        requirement = Requirement(wanted.pop())
        which = canonicalize_name(requirement.name), frozenset(requirement.extras)
        if which not in found:
            found.add(which)
            requirements = map(Requirement, metadata.requires(requirement.name) or ())
            wanted += [str(r) for r in requirements if needed(r, requirement.extras)]
    names = {name for name, _ in found}
    modules = metadata.packages_distributions().items()
    return frozenset(module for module, of in modules if names & set(map(canonicalize_name, of)))


def needed(requirement: Requirement, extras: set[str]) -> bool:
    """Whether a requirement is one here, with some extras of the package that has it."""
    return requirement.marker is None or any(requirement.marker.evaluate({"extra": extra}) for extra in extras or {""})


def lean(*extras: str) -> dict[str, str]:
    """The environment of a process that can import nothing but what :func:`installed_with` gives."""
    lacking = set(metadata.packages_distributions()) - installed_with(*extras)
    path = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path, "LACKING": ",".join(sorted(lacking))}
