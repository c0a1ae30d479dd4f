"""One mutant: a planted bug as a data file, and the check that the bug still applies to the tree."""

import subprocess
import tomllib
from pathlib import Path

import msgspec

PLANTED = Path(__file__).parent / "planted"
"""The folder of the data files; a file's stem is the mutant's name."""


class BadMutant(ValueError):
    """A data file that cannot be used; the message names the file, the mistake and the remedy."""


class Mutant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A planted bug."""

    file: str
    """The product file, relative to the root of the tree."""
    old: str
    """The text that is replaced; occurs exactly once in `file`."""
    new: str
    tests: tuple[str, ...]
    """The test files of which each must fail."""
    harm: str
    """One sentence: the harm that the bug would do to a user."""
    equivalent: str = ""
    """The reason why no test can notice the change. Such a mutant is listed and not run."""
    hangs: bool = False
    """Whether the bug makes the test file run without end, so that its time-out counts as a kill."""
    name: str = ""
    """The stem of the data file."""


def read_mutants(folder: Path) -> list[Mutant]:
    """Every mutant of a folder, in the order of their names.

    Raises:
        BadMutant: a data file is malformed.
    """
    return [_read(path) for path in sorted(folder.glob("*.toml"))]


def _read(path: Path) -> Mutant:
    try:
        mutant = msgspec.convert(tomllib.loads(path.read_text()), Mutant)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise BadMutant(f"{path}: {error}; CONTRIBUTING.md (Mutants) lists the fields") from None
    for field in ("file", "old", "harm"):
        if not getattr(mutant, field).strip():
            raise BadMutant(f"{path}: `{field}` is empty; CONTRIBUTING.md (Mutants) describes the fields")
    if not mutant.tests:
        raise BadMutant(f"{path}: `tests` is empty; name the test file that must fail")
    if mutant.old == mutant.new:
        raise BadMutant(f"{path}: `old` and `new` are the same text; write the bug into `new`")
    return msgspec.structs.replace(mutant, name=path.stem)


def mutated(mutant: Mutant, root: Path) -> str:
    """The product file's text with the bug in it.

    Raises:
        BadMutant: the mutant no longer applies to the tree at `root`.
    """
    product = root / mutant.file
    data_file = f"tests/mutants/planted/{mutant.name}.toml"
    if not product.is_file():
        raise BadMutant(f"{mutant.name} no longer applies: there is no {mutant.file}; write the code's new place into {data_file}")
    for test in mutant.tests:
        if not (root / test).is_file():
            raise BadMutant(f"{mutant.name} no longer applies: there is no {test}; write the test file's new name into {data_file}")
    text = product.read_text()
    if (times := text.count(mutant.old)) != 1:
        raise BadMutant(
            f"{mutant.name} no longer applies: its old text occurs {times} times in {mutant.file}, not once; "
            f"plant the same bug in the code as it is now (`old` and `new` in {data_file})"
        )
    return text.replace(mutant.old, mutant.new)


def git(root: Path, *arguments: str) -> str:
    """The output of a git command.

    Raises:
        BadMutant: git refuses; the message has its reason.
    """
    ran = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=False)
    if ran.returncode:
        raise BadMutant(f"git {' '.join(arguments)}: {ran.stderr.strip()}; run in a checkout, and name a commit that it has")
    return ran.stdout.strip()
