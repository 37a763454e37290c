"""Labels: words or numbers of a column -> numbers of classes, and the lists that number classes.

Rules: a column has either numbers or words. In a mixed column, rows of the rarer kind are faults: one of them must not
renumber all labels and change their meaning.
"""

from __future__ import annotations

import math
import re
import unicodedata
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import msgspec

from wids.core.files.json_text import TOLERANT
from wids.core.tables.keys import encode_name
from wids.core.transport.download import read_bytes
from wids.core.transport.session import PLAIN, Session
from wids.errors import InputError, SampleError, a_kind, shorten, shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?[0-9]{1,2})?")  # digits of any script
# 1,000 and 1|2 and ['a', 'b']: neither a number nor a word.
_SEVERAL = re.compile(r"""[+-]?\d+(?:[,;|'\u2019\s]\s*\d+)+|\[(?:\s*|.*[\d'",].*)\]""", re.DOTALL)
_EXACT = 1 << 53  # the largest whole number up to which floats have all
_NAMED = 5  # classes that are named in a line


class Labels(msgspec.Struct, frozen=True, kw_only=True):
    """The meaning of the labels of a column.

    Attributes:
        column: its name.
        numbers: of the classes, by name; None: labels are numbers.
        classes: names by number, as given; None: no list was given.
        alike: these names, by their visible part.
    """

    column: str
    numbers: dict[str, int] | None
    classes: list[str] | None
    alike: dict[str, str] = msgspec.field(default_factory=dict)

    def number(self, value: Any) -> int:
        """The number of a label.

        Raises:
            SampleError: it is empty, of the rarer kind, no whole number, or of an unknown class.
        """
        label = parse_label(value, self.column)
        if label is None:
            raise SampleError(f"column {self.column!r} is empty")
        if self.classes is not None:
            return self._find_class(value, label)
        if isinstance(label, str):
            if _SEVERAL.fullmatch(label):
                raise SampleError(
                    f"column {self.column!r}: {shown(value)} is several values, or a number with separators; a label "
                    "is one word, or a number like 1000; mend it, give a list of classes, or take .txt or .json",
                    hint="classes",
                )
            if self.numbers is None:
                raise _stray(self.column, value, "a word", "numbers")
            return self.numbers[label]
        if self.numbers is not None:
            raise _stray(self.column, value, "a number", "words")
        return _whole(label, self.column, value)

    def _find_class(self, value: Any, label: str | Decimal) -> int:
        classes = self.classes or []
        if self.numbers is None:
            number = _whole(label, self.column, value) if isinstance(label, Decimal) else -1
        else:
            text = label if isinstance(label, str) else str(value).strip()
            number = self.numbers.get(text, -1)
            if number < 0 and _is_whole(label):  # 2.0 and " 2" are the class "2"
                number = self.numbers.get(str(int(label)), -1)
        if not 0 <= number < len(classes):
            raise SampleError(
                f"column {self.column!r}: {shown(value)} is none of the {count_classes(classes)} ({name_some(classes)})"
                f"{find_alike(str(value), self.alike)}"
            )
        return number


def number_labels(column: str, values: Iterable[Any], classes: Sequence[str] | None) -> Labels:
    """Number the labels of a column: words are classes, in sorted order unless a list is given.

    Args:
        column: its name.
        values: of all rows.
        classes: names by number; None: the words of the column.

    Raises:
        InputError: two words look alike.
    """
    words, count = dict[str, int](), 0
    for value in values:
        try:
            label = parse_label(value, column)
        except SampleError:  # of its row
            continue
        if isinstance(label, str) and (classes is not None or not _SEVERAL.fullmatch(label)):
            words[label] = words.get(label, 0) + 1
        elif label is not None:
            count += 1
    if classes is not None:
        is_numeric = not words and not any(_NUMBER.fullmatch(name) for name in classes)
        numbers = None if is_numeric else {name: k for k, name in enumerate(classes)}
        return Labels(column=column, numbers=numbers, classes=list(classes), alike=fold_names(classes))
    if not words or count >= sum(words.values()):
        return Labels(column=column, numbers=None, classes=None)
    if not count and {word.casefold() for word in words} <= {"false", "true"}:  # also where there is but one of them
        truth = {word: int(word.casefold() == "true") for word in words}
        return Labels(column=column, numbers=truth, classes=["False", "True"])
    names = sorted(words, key=encode_name)
    check_alike(names, f"column {column!r}")
    return Labels(column=column, numbers={name: k for k, name in enumerate(names)}, classes=None)


def parse_label(value: Any, column: str) -> str | Decimal | None:
    """A word, a number, or None for nothing; whole floats and padded numbers are numbers.

    Raises:
        SampleError: it is neither text nor a number.
    """
    if isinstance(value, bytes):
        try:
            value = value.decode("utf-8")
        except ValueError:
            raise SampleError(f"column {column!r}: {shown(value)} is no label") from None
    if isinstance(value, str):
        text = value.strip()
        if not text or text.lower() == "nan":
            return None
        return Decimal(text) if _NUMBER.fullmatch(text) else text
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, (int, float, Decimal)):  # a bool is 0 or 1
        return Decimal(value)
    raise SampleError(f"column {column!r} holds {a_kind(value)}, which is no label")


def check_alike(names: Iterable[str], where: str) -> None:
    """Refuse two classes that look the same (letter case, spaces, forms of Unicode): one of them is probably a mistake.

    Raises:
        InputError: two classes look the same.
    """
    seen: dict[str, str] = {}
    for name in names:
        other = seen.setdefault(_fold(name), name)
        if other != name:
            is_case = other.casefold() == name.casefold()
            how = "differ in case alone" if is_case else "look alike"
            first, second = map(shown if is_case else _spell, (other, name))
            raise InputError(
                f"{where}: the classes {first} and {second} {how}; make them one, or give a list of all classes with "
                "both",
                hint="classes",
            )


def fold_names(names: Iterable[str]) -> dict[str, str]:
    """Names by their visible part, for `find_alike`."""
    return {_fold(name): name for name in names}


def find_alike(name: str, folded: Mapping[str, str]) -> str:
    """A hint for an error: the class that looks like an unknown name; "" if none does."""
    found = folded.get(_fold(name))
    return "" if found is None else f"; it looks like {_spell(found)}, and is {_spell(name)}"


def _fold(name: str) -> str:
    """The visible part of a name: without case, outer and doubled spaces, marks of no width, forms of Unicode."""
    if name.isascii():
        return " ".join(name.casefold().split())
    text = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())
    return " ".join("".join(each for each in text if unicodedata.category(each) != "Cf").split())


def _spell(name: str) -> str:
    return shorten(ascii(name))


def read_classes(source: str, *, session: Session = PLAIN) -> list[str]:
    """Names of classes, by number: of a text with a name a line, a JSON list, or an index that has them.

    Also of the ``dataset_info.json`` of a dataset that Hugging Face's ``datasets`` saved, if one of its columns is a
    class label.

    Args:
        source: path or URL.
        session: opens URLs.

    Raises:
        InputError: it has no classes, or a name twice. FetchError: it cannot be read.
    """
    if source.lower().endswith((".csv", ".tsv", ".parquet")):
        raise InputError(f"{source}: is a table; a list of classes is a text with a name a line, or JSON", url=source)
    data = read_bytes(source, session=session)
    try:
        text = data.decode("utf-8-sig")
        is_json = text.lstrip()[:1] in ("[", "{")
        found = TOLERANT.parse(text) if is_json else [line.strip() for line in re.split(r"\r\n|\r|\n", text)]
    except ValueError as error:
        raise InputError(f"{source}: is no list of classes that can be read ({error})", url=source) from error
    if isinstance(found, dict):
        found = _find_names(found)
    elif not is_json:
        while found and not found[-1]:
            found.pop()
    if not isinstance(found, list) or not found:
        raise InputError(
            f"{source}: has no classes; give a text with a name a line, a JSON list, or an index with classes",
            url=source,
        )
    seen: dict[str, int] = {}
    for k, name in enumerate(found):
        if not isinstance(name, str) or not name.strip():
            raise InputError(f"{source}: class {k} is {shown(name)}; each is a name", url=source)
        if seen.setdefault(name, k) != k:
            raise InputError(f"{source}: {shown(name)} is class {seen[name]} and class {k}", url=source)
    return found


def _find_names(found: dict[str, Any]) -> Any:
    """The classes in a JSON object; None: it has none."""
    info, features = found.get("info"), found.get("features")
    if isinstance(features, dict) and "classes" not in found:
        labels = [each for each in features.values() if isinstance(each, dict) and each.get("_type") == "ClassLabel"]
        return labels[0].get("names") if len(labels) == 1 else None
    return found.get("classes", info.get("classes") if isinstance(info, dict) else None)


def find_joined(classes: Iterable[str]) -> list[str]:
    """Classes like ``cat|dog``, whose parts are classes themselves: possibly several labels of a sample."""
    names = set(classes)
    joined = (name for name in names if len(parts := re.split(r"\s*[|,;]\s*", name)) > 1 and names.issuperset(parts))
    return sorted(joined, key=encode_name)


def name_some(classes: Sequence[str]) -> str:
    """``cat, dog, eel, ...``."""
    names = [name if len(name) <= 40 else f"{name[:40]}..." for name in classes[:_NAMED]]
    return ", ".join([*names, "..."] if len(classes) > _NAMED else names)


def describe_classes(classes: Sequence[str], *, are_given: bool) -> str:
    """A description of classes for a report."""
    how = "as given" if are_given else "in sorted order"
    return f"{count_classes(classes)}, numbered {how} from 0 ({name_some(classes)})"


def count_classes(classes: Sequence[str]) -> str:
    """``1 class``, ``12 classes``."""
    return f"{len(classes):,} class{'' if len(classes) == 1 else 'es'}"


def _whole(label: str | Decimal, column: str, value: Any) -> int:
    if _is_whole(label):
        is_float = isinstance(value, float) or any(mark in str(value) for mark in ".eE")
        if is_float and not isinstance(value, Decimal) and abs(int(label)) > _EXACT:
            raise SampleError(f"column {column!r}: {shown(value)} is a float, too large to have all its digits")
        return int(label)
    raise SampleError(f"column {column!r}: {shown(value)} is not a whole number; .txt and .json hold others")


def _is_whole(label: str | Decimal) -> bool:
    return isinstance(label, Decimal) and label.is_finite() and label == label.to_integral_value()


def _stray(column: str, value: Any, kind: str, most: str) -> SampleError:
    return SampleError(
        f"column {column!r}: {shown(value)} is {kind}, and most labels are {most}; mend it, or give a list of classes",
        hint="classes",
    )
