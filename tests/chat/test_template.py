"""The environment of chat templates: that of transformers, and limits that depend on the row alone."""

from __future__ import annotations

from typing import Any

import jinja2
import pytest

from tokenloom.chat.definition import ChatDefinition
from tokenloom.chat.limits import with_text
from tokenloom.chat.template import ChatTemplate
from tokenloom.errors import BadConversation, SpecError

_MESSAGES = [{"role": "user", "content": "hi <b> ü"}]


def _render(template: str, messages: list[dict[str, Any]] | None = None, **fields: Any) -> str:
    return ChatTemplate(ChatDefinition(template, **fields)).render(_MESSAGES if messages is None else messages)


def _problem(template: str, **fields: Any) -> str:
    with pytest.raises(BadConversation) as caught:
        _render(template, **fields)
    assert caught.value.reason == "template"
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{{ messages[0].content }}", "hi <b> ü"),
        ("  {% if true %}\n  a\n  {% endif %}\n", "  a\n"),  # trim_blocks, lstrip_blocks
        ("{{ messages[0] | tojson }}", '{"role": "user", "content": "hi <b> ü"}'),  # no escapes of HTML
        (
            "{{ {'b': 1, 'a': 'ü'} | tojson(sort_keys=true, ensure_ascii=true, separators=(',', ':')) }}",
            '{"a":"\\u00fc","b":1}',
        ),
        (
            "{% for i in range(9) %}{% if i == 1 %}{% continue %}{% endif %}{% if i == 3 %}{% break %}{% endif %}"
            "{{ i }}{% endfor %}",
            "02",
        ),
        ("{% set ns = namespace(self=1) %}{% set ns.a = 2 %}{{ ns.a + ns.self + 1 }}", "4"),
        ("{{ [1] + [2] }}{{ 1 ~ 2 ~ 'x' }}{{ 2 * 3 }}{{ 7 % 4 }}{{ '%s!' % 'a' }}", "[1, 2]12x63a!"),
        ("{{ dict(a=1) }}{{ dict.fromkeys(['a']) }}", "{'a': 1}{'a': None}"),
        (
            "{{ tools is none }}{{ documents is none }}{{ add_generation_prompt }}{{ nothing is defined }}",
            "TrueTrueFalseFalse",
        ),
        ("{% generation %}{{ 'a' }}{% endgeneration %}", "a"),
        ("{% macro f(a) %}<{{ a }}>{% endmacro %}{{ f(messages[0].role) + '!' }}", "<user>!"),
        ("{{ messages[0].items() | list | length }}{{ messages[0].get('x', 'y') }}", "2y"),
        ("{{ 'a,b'.split(',') | join('-') }}{{ 'abc'.replace('b', 'x') }}{{ '{}'.format(1) }}", "a-baxc1"),
        ("{{ messages[0].missing is defined }}{{ messages[0]['missing'] }}|", "False|"),
        ("{{ loop is defined }}{% for a in 'xy' %}{{ loop.index0 }}{{ loop.last }}{% endfor %}", "False0False1True"),
    ],
)
def test_a_template_sees_what_transformers_gives_it(template: str, text: str) -> None:
    assert _render(template) == text
    transformers = pytest.importorskip("transformers.utils.chat_template_utils")
    assert transformers.render_jinja_template([_MESSAGES], chat_template=template)[0] == [text]


def test_a_template_sees_reasoning_where_transformers_puts_it() -> None:
    messages = [{"content": "a", "reasoning_content": "r", "role": "assistant"}]
    names = "{{ messages[0] | list | join(',') }}"
    assert _render(names, messages) == "thinking,content,reasoning_content,role"


def test_a_template_gets_the_special_tokens_and_arguments_but_no_weights() -> None:
    messages = [{"role": "assistant", "content": "a", "reasoning_content": "r", "train": False}]
    template = "{{ bos_token }}{{ deep.x }}{{ messages[0].thinking }}{{ messages[0].train is defined }}"
    definition = {"special_tokens": {"bos_token": "<s>"}, "arguments": {"deep": {"x": 1}}}
    assert _render(template, messages, **definition) == "<s>1rFalse"


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        ("{% for %}", "in line 1"),
        ("a\n{{ b", "in line 2"),
        (
            "{% for a in [1] %}{% generation %}{% break %}{% endgeneration %}{% endfor %}",
            "a loop can't end, or go on, in a block of generation",
        ),
        ("{{ a" + ".b" * 120 + " }}", "too many nested parentheses"),
        ("{{ a | random }}", "No filter named 'random'"),
        ("{{ " + "(" * 500 + "1" + ")" * 500 + " }}", "chat.template is not a template of Jinja"),
    ],
)
def test_a_template_that_is_not_valid_is_an_error_of_the_spec(template: str, problem: str) -> None:
    with pytest.raises(SpecError, match="repair it, or give another") as caught:
        ChatTemplate(ChatDefinition(template))
    assert problem in str(caught.value)


_NO_TEXT = [
    "{{ messages[0].content.title }}",
    "{{ messages[0].items }}",
    "{{ [messages[0].content.title] }}",
    "{{ {'a': [messages[0].get]} }}",
    "{{ 'x' ~ messages[0].content.title }}",
    "{{ messages[0].content.title | string }}",
    "{{ messages[0].content.title | upper }}",
    "{{ [messages[0].content.title] | join }}",
    "{{ '%s' % messages[0].content.title }}",
    "{{ '%s' | format(messages[0].content.title) }}",
    "{{ '{}'.format(messages[0].content.title) }}",
    "{{ raise_exception }}",
    "{{ range }}{{ range(3) }}",
    "{{ messages | map(attribute='role') }}",
    "{{ messages[0].keys() }}",
    "{{ namespace(a=1) }}",
    "{{ cycler('a', 'b') }}",
    "{% for one in messages %}{{ loop }}{% endfor %}",
    "{% macro f() %}{% endmacro %}{{ f }}",
]


@pytest.mark.parametrize("template", _NO_TEXT)
def test_a_template_that_writes_an_object_is_refused(template: str) -> None:
    with pytest.raises(BadConversation, match=r"it writes an object of type \w+, which has no text"):
        _render(template)
    if ".title" in template:
        with pytest.raises(BadConversation, match=r"has no text: write title\(\), with brackets"):
            _render(template)
    environment = jinja2.Environment(finalize=with_text)
    if "{{ messages" in template and "|" not in template:
        with pytest.raises(jinja2.TemplateError, match="it writes an object"):
            environment.from_string(template).render(messages=_MESSAGES)


def test_values_that_have_a_text_of_their_own_are_written_as_transformers_writes_them() -> None:
    template = "{{ 1 }} {{ 1.5 }} {{ true }} {{ none }} {{ nothing }} {{ ['a', {'b': 1, 'c': none}] }} {{ (1, 'a') }}"
    assert _render(template) == "1 1.5 True None  ['a', {'b': 1, 'c': None}] (1, 'a')"


@pytest.mark.parametrize("pattern", ["%s", "%d %-s", "%Es", "%10s", "%%%s", "%Z", "%z", "%d%-z", "%EZ", "%:z"])
def test_a_date_that_depends_on_the_time_zone_is_refused(pattern: str) -> None:
    with pytest.raises(BadConversation, match=r"strftime_now\('%.*[szZ]'\) depends on the time zone of the machine"):
        _render(f"{{{{ strftime_now('{pattern}') }}}}", date="2026-11-25")
    assert _render("{{ strftime_now('%%s %d %b %Y') }}", date="2026-11-25") == "%s 25 Nov 2026"


_LONG = "{% set t = 'a' * 15000000 %}"


def _doubling(value: str) -> str:
    return f"{{% set ns = namespace(x='aaaaaaaa') %}}{{% for i in range(60) %}}{{% set ns.x = {value} %}}{{% endfor %}}"


def _nested(value: str, first: str = "['a']") -> str:
    """Return a template that puts a value into itself many times, and writes it."""
    macro = "{% macro f() %}{% set ns.x = varargs %}{% endmacro %}"
    loop = f"{{% for i in range(60) %}}{{% set made = {value} %}}{{% set ns.x = made or ns.x %}}{{% endfor %}}"
    return f"{{% set ns = namespace(x={first}) %}}{macro}{loop}{{{{ ns.x | string | length }}}}{{{{ ns.x == 1 }}}}"


@pytest.mark.parametrize(
    "template",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{{ f(n) }}{{ f(n) }}{% endmacro %}{{ f(1) }}",
        "{% macro f(n) %}{% if n > 0 %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(40) }}",
        "{% for a in [1] recursive %}{{ loop([1, 2]) }}{% endfor %}",
        "{{ 'a' * 1000000000 }}",
        "{{ [1] * 1000000000 }}",
        "{{ 10 ** (10 ** 10) }}",
        "{{ '%1000000000d' % 1 }}",
        "{{ '%*d' % (1000000000, 1) }}",
        "{{ '{:1000000000}'.format(1) }}",
        "{{ '{:{}}'.format(1, 1000000000) }}",
        "{{ 'a'.center(1000000000) }}",
        "{{ 'a' | center(1000000000) }}",
        "{{ 'a'.ljust(1000000000) }}",
        "{{ '1'.zfill(width=1000000000) }}",
        "{{ 'a\n' | indent(1000000000) }}",
        "{{ [1] | tojson(indent=1000000000) }}",
        "{{ 1 | round(1000000000, 'ceil') }}",
        "{{ (1).to_bytes(1000000000, 'big') }}",
        "{% set a = 'a' * 9000 %}{{ a.replace('a', a) | length }}",
        "{% set a = 'a' * 9000 %}{{ a | replace('a', a) | length }}",
        "{% set a = 'a' * 9000 %}{{ a.join(range(9000) | map('string')) | length }}",
        "{% set a = 'a' * 9000 %}{{ range(9000) | join(a) | length }}",
        "{% set a = 'a' * 9000 %}{{ (a, a) | map('replace', 'a', a) | list | length }}",
        "{% set a = 'a' * 9000 %}{% for i in range(100000) %}{{ a }}{% endfor %}",
        "{% set a = 'a' * 9000 %}{% set b %}{% for i in range(99999) %}{{ a }}{% endfor %}{% endset %}{{ b }}",
        "{% set b %}{% for i in range(100000) %}" + "a" * 9000 + "{% endfor %}{% endset %}{{ b | length }}",
        "{% set a = 'a' * 9000 %}{{ ([a] * 90000) | tojson | length }}",
        "{% set a = 'a' * 9000 %}{{ [a] * 90000 }}",
        "{{ [-(10 ** 12)] | map('(round)') | list }}" + _LONG + "{% for i in range(99) %}{{ t }}{% endfor %}",
        _doubling("ns.x + ns.x"),
        _doubling("ns.x ~ ns.x"),
        _doubling("'%s%s' % (ns.x, ns.x)"),
        _doubling("'{0}{0}'.format(ns.x)"),
        _doubling("[ns.x, ns.x] | join"),
        "{% set ns = namespace(x=3) %}{% for i in range(60) %}{% set ns.x = ns.x * ns.x %}{% endfor %}{{ ns.x }}",
        "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
        # Many operations on long texts and lists, or one that makes too much or takes too long.
        _LONG + "{% for i in range(99999) %}{% if t.find('b') == 1 %}{% endif %}{% endfor %}",
        _LONG + "{% for i in range(99999) %}{% if 'b' in t %}{% endif %}{% endfor %}",
        _LONG + "{% for i in range(99999) %}{% set x = t[1:] %}{% endfor %}",
        _LONG + "{% set u = t + 'b' %}{% set v = t + 'c' %}{% for i in range(99999) %}{% set x = u == v %}{% endfor %}",
        _LONG
        + "{% set ns = namespace(x=[]) %}{% for i in range(999) %}{% set ns.x = ns.x + [t + i | string] %}{% endfor %}",
        _LONG + "{% set x = ([t] * 1000) | map('upper') | list %}",
        _LONG + "{{ ([t] * 1000) | string | length }}",
        _LONG + "{{ raise_exception([t] * 1000) }}",
        _LONG + "{% for i in range(99) %}{% set x = t.split('a') %}{% endfor %}",
        "{% set a = 'f' * 9000000 %}{{ (a | int(0, 16) // a[1000000:] | int(0, 16)) == 1 }}",
        "{% set a = 'f'.encode() * 9000000 %}{{ ((1).from_bytes(a, 'big') // (1).from_bytes(a[1000:], 'big')) == 1 }}",
        "{% set a = 'a' * 900000 %}{{ ('a' * 9000000).rfind(a + 'b' + a) }}",
        "{{ (('<!---->' * 2000000) | safe).striptags() }}",
        "{% for i in range(99999) %}{% for j in range(99999) if false %}{% endfor %}{% endfor %}",
        "{% for i in range(99999) %}{% set x = range(99999) | select('none') | first %}{% endfor %}",
        "{% set x = namespace(a='&' * 9000000) %}{% for i in range(60) %}{% set x.a = x.a | forceescape %}{% endfor %}",
        _nested("[ns.x, ns.x]"),
        _nested("(ns.x, ns.x)"),
        _nested("{'a': ns.x, 'b': ns.x}"),
        _nested("{'a': ns.x.values(), 'b': ns.x.values()}", "{'a': 1}"),
        _nested("dict(a=ns.x, b=ns.x)"),
        _nested("dict.fromkeys('ab', ns.x)"),
        _nested("[ns.x] * 2"),
        _nested("[ns.x] + [ns.x]"),
        _nested("([0] * 2) | map('default', ns.x, true) | list"),
        _nested("cycler(ns.x, ns.x).items"),
        _nested("f(ns.x, ns.x)"),
        _nested("(ns.x + ns.x) | groupby(0) | list", "[('a', 1)]"),
    ],
)
def test_a_template_that_takes_too_much_is_refused_soon(template: str) -> None:
    assert "the template does not render it" in _problem(template)


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__ }}" + "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({}) }}",
        "{{ ().__class__.__bases__[0].__subclasses__() }}",
        "{{ raise_exception.__globals__ }}",
        "{{ namespace.__init__.__globals__['json'] }}",
        "{{ '{0.__class__.__mro__}'.format('') }}",
        "{{ ('{0.__class__.__mro__}' | attr('format'))('') }}",
        "{% set ns = namespace(__class__=1) %}",
        "{% set ns = namespace() %}{% set ns._x = 1 %}",
        "{{ self.__init__.__globals__ }}",
        "{{ cycler.__init__.__globals__.os }}",
        "{{ joiner | attr('__init__') | attr('__globals__') }}",
        "{{ dict.mro() }}",
        "{% include 'x' %}",
        "{% import 'os' as os %}",
        "{{ lipsum() }}",
    ],
)
def test_no_template_leaves_the_sandbox(template: str) -> None:
    try:
        text = _render(template)
    except BadConversation:
        return
    assert text == ""  # an unsafe attribute is undefined


def test_the_reason_of_a_template_is_quoted() -> None:
    problem = _problem("{{ raise_exception('Roles must\nalternate') }}")
    assert problem.startswith("the template does not render it (Roles must alternate); ")


def test_the_present_day_is_that_of_the_spec() -> None:
    template = "{% if strftime_now is defined %}{{ strftime_now('%d %b %Y %H') }}{% endif %}"
    assert _render(template, date="2026-11-25") == "25 Nov 2026 00"
    with pytest.raises(SpecError, match=r"give chat.date, such as 2026-11-25"):
        _render(template)


def test_a_long_conversation_is_within_the_limits() -> None:
    template = (
        "{% for message in messages %}{% for other in messages[:20] %}{% endfor %}{{ message.content }}{% endfor %}"
    )
    messages = [{"role": "user", "content": "x" * 100}] * 20_000
    assert len(_render(template, messages)) == 2_000_000
    huge = [{"role": "user", "content": "é" * 20_000_000}]
    assert len(_render("{{ messages[0].content | trim + '!' }}", huge)) == 20_000_001


def test_what_a_template_takes_is_counted_anew_for_each_row() -> None:
    template = ChatTemplate(
        ChatDefinition("{% for i in range(9000) %}{% for j in range(15) %}{% endfor %}{% endfor %}")
    )
    for _ in range(3):
        assert template.render(_MESSAGES) == ""
