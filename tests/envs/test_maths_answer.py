"""The table of accepted and refused forms of answers, and what hostile text does to reading them."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.maths.answer import EMPTY_BOX, NO_BOX, NO_TEXT, OPEN_BOX, TOO_LONG, boxed, integer_of

BOXES = [
    (r"So the answer is \boxed{70}.", "70"),
    (r"First \boxed{1}, no: \boxed{2}", "2"),
    (r"\boxed {5}", "5"),
    (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
    (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
    (r"\boxed{\left\{ x : x > 0 \right\}}", r"\left\{ x : x > 0 \right\}"),
    (r"line\\\boxed{5}", "5"),
    ("a } stray brace } and \\boxed{7} then { another", "7"),
    (r"Put it in \boxed{ and go on. So \boxed{8}", "8"),
    (r"\boxed{\text{no}}", r"\text{no}"),
    (r"\boxed{\boxed{9}}", "9"),
    (r"\\boxed{70}", "70"),  # a backslash too many: meant all the same
]
NO_ANSWER = [
    ("", NO_TEXT),
    (" \n", NO_TEXT),
    ("The answer is 70.", NO_BOX),
    (r"\boxed 70", NO_BOX),
    (r"\boxed{70", OPEN_BOX),
    (r"\boxed{70} and then \boxed{7", OPEN_BOX),
    (r"\boxed{7\}", OPEN_BOX),
    (r"\boxed{}", EMPTY_BOX),
    (r"\boxed{ }", EMPTY_BOX),
    (r"\boxed{" + "1" * 5000 + "}", TOO_LONG),
]


@pytest.mark.parametrize(("text", "content"), BOXES)
def test_the_last_closed_box_is_the_answer(text: str, content: str) -> None:
    assert boxed(text).text == content


@pytest.mark.parametrize(("text", "why"), NO_ANSWER)
def test_what_is_no_answer_says_why(text: str, why: str) -> None:
    found = boxed(text)
    assert (found.text, found.why) == (None, why)


ACCEPTED = [
    ("70", 70),
    (" 70 ", 70),
    ("016", 16),
    ("0", 0),
    ("-5", -5),
    ("+5", 5),
    ("- 5", -5),
    ("\u22125", -5),
    ("1,342", 1342),
    ("1{,}342", 1342),
    (r"1,\!342", 1342),
    (r"1\,342", 1342),
    ("33,124,147", 33124147),
    (r"33\,124\,147", 33124147),
    ("70.", 70),
    ("$70$", 70),
    (r"\(70\)", 70),
    (r"\[ 70 \]", 70),
    (r"336^\circ", 336),
    (r"336^{\circ}", 336),
    (r"336 ^ {\circ}", 336),
    ("336°", 336),
    (r"336 \text{ degrees}", 336),
    ("336 degrees", 336),
    (r"\text{70}", 70),
    (r"\mathbf{070}", 70),
    (r"\mathrm{ 70 }", 70),
    ("{70}", 70),
    (r"\displaystyle 70", 70),
    (r"\ 70\,", 70),
    ("9" * 40, int("9" * 40)),
]
REFUSED = [
    "",
    ".",
    "-",
    "seventy",
    "70.0",
    "7e1",
    "0x46",
    "7_0",
    r"\frac{140}{2}",
    "140/2",
    "35+35",
    r"2\cdot 35",
    "n = 70",
    "m+n=70",
    "70 or 71",
    "70, 71",
    "1,34",
    "13,42",
    "1,3425",
    ",342",
    "1 342",
    "70 71",
    "70 cm",
    r"70 \text{ cm}",
    r"70\%",
    "--5",
    "(70)",
    "70!",
    "7^2",
    "７０",
    "٧٠",
    "७०",
    "⁷⁰",
    "𝟕𝟎",
    "②",
    "70\u200b",
    "7\n0",
    "9" * 41,
    "9" * 1_000_000,
    "{" * 3000 + "70" + "}" * 3000,
    r"\text{" * 400 + "7" + "}" * 300,
]


@pytest.mark.parametrize(("text", "number"), ACCEPTED)
def test_accepted_spellings_of_integers(text: str, number: int) -> None:
    assert integer_of(text) == number


@pytest.mark.parametrize("text", REFUSED, ids=lambda text: repr(text[:20]))
def test_refused_spellings(text: str) -> None:
    assert integer_of(text) is None


@given(st.integers(-(10**39), 10**39), st.sampled_from(["{}", "\\boxed{{{}}}", "{:,}"]))
def test_every_integer_is_read_back(number: int, form: str) -> None:
    text = form.format(number)
    assert integer_of(boxed(text).text if "boxed" in form else text) == number  # type: ignore[arg-type]


@given(st.text(st.sampled_from("\\boxed{}$ ,.0123456789-+^circ°\n "), max_size=200))
def test_nothing_raises_and_what_is_read_is_in_the_text(text: str) -> None:
    found = boxed(text)
    assert found.text is None or found.text in text
    assert integer_of(text) is None or any(digit in text for digit in "0123456789")


@pytest.mark.parametrize(
    "text",
    [
        "\\boxed{" * 150_000,
        "\\boxed{" + "{" * 1_000_000,
        "\\boxed{" + "}" * 1_000_000,
        "\\" * 1_000_001 + "boxed{1}",
        "\\boxed{" + "\\{" * 500_000 + "}",
        "\\boxed" + " " * 1_000_000,
        "\\boxed{" + " ," * 500_000 + "}",
    ],
    ids=range(7),
)
def test_a_megabyte_is_read_in_linear_time(text: str) -> None:
    began = time.process_time()
    found = boxed(text)
    assert found.text is None or integer_of(found.text) is None or len(found.text) < 10
    assert time.process_time() - began < 3.0
