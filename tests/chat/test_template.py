"""The environment of chat templates: that of transformers, and a limit of time that ends a build."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.builders.chat_tokenizer import CHATML
from tests.builders.chats import chat_spec, conversation
from tests.builders.datasets import build
from tokenloom.chat.conversation import ChatDefinition, canonical
from tokenloom.chat.rendering import ChatRenderer
from tokenloom.chat.template import ChatTemplate
from tokenloom.errors import BadConversation, InputError, SpecError

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
        ("{{ [1] + [2] }}{{ 1 ~ 2 ~ 'x' }}{{ 2 * 3 }}{{ 7 % 4 }}{{ '%s!' % 'a' }}", "[1, 2]12x63a!"),
        (
            "{{ tools is none }}{{ documents is none }}{{ add_generation_prompt }}{{ nothing is defined }}",
            "TrueTrueFalseFalse",
        ),
        ("{% generation %}{{ 'a' }}{% endgeneration %}", "a"),
        ("{% macro f(a) %}<{{ a }}>{% endmacro %}{{ f(messages[0].role) + '!' }}", "<user>!"),
        ("{{ messages[0].items() | list | length }}{{ messages[0].get('x', 'y') }}", "2y"),
        (
            "{{ 1 }} {{ 1.5 }} {{ true }} {{ none }} {{ nothing }} {{ ['a', {'b': 1, 'c': none}] }} {{ (1, 'a') }}",
            "1 1.5 True None  ['a', {'b': 1, 'c': None}] (1, 'a')",
        ),
    ],
)
def test_a_template_sees_what_transformers_gives_it(template: str, text: str) -> None:
    assert _render(template) == text
    transformers = pytest.importorskip("transformers.utils.chat_template_utils")
    assert transformers.render_jinja_template([_MESSAGES], chat_template=template)[0] == [text]


def test_a_template_gets_the_special_tokens_and_arguments_but_no_weights() -> None:
    messages = [{"role": "assistant", "content": "a", "reasoning_content": "r", "train": False}]
    template = "{{ bos_token }}{{ deep.x }}{{ messages[0].thinking }} {{ messages[0] | list | join(',') }}"
    definition = {"special_tokens": {"bos_token": "<s>"}, "arguments": {"deep": {"x": 1}}}
    assert _render(template, messages, **definition) == "<s>1r thinking,role,content,reasoning_content"


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        ("{% for %}", "in line 1"),
        (
            "{% for a in [1] %}{% generation %}{% break %}{% endgeneration %}{% endfor %}",
            "a loop can't end, or go on, in a block of generation",
        ),
        ("{{ " + "(" * 500 + "1" + ")" * 500 + " }}", "chat.template is not a template of Jinja"),
    ],
)
def test_a_template_that_is_not_valid_is_an_error_of_the_spec(template: str, problem: str) -> None:
    with pytest.raises(SpecError, match="repair it, or give another") as caught:
        ChatTemplate(ChatDefinition(template))
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages[0].content.title }}",
        "{{ {'a': [messages[0].content.title]} }}",
        "{{ messages | map(attribute='role') }}",
        "{% for one in messages %}{{ loop }}{% endfor %}",
        "{% macro f() %}{% endmacro %}{{ f }}",
    ],
)
def test_a_template_that_writes_an_object_is_refused(template: str) -> None:
    assert "it writes an object of type " in _problem(template)


@pytest.mark.parametrize("value", ["'x' ~ {}", "{} | string | upper", "[{}] | join", "'%s' % {}", "'{{}}'.format({})"])
def test_a_place_in_memory_is_refused_unless_the_row_has_it(value: str) -> None:
    def rendered(method: str, content: str) -> str:
        renderer = ChatRenderer(ChatDefinition("{{ " + value.format(f"messages[0].content{method}") + " }}"), [], "a")
        return renderer.render(canonical({"messages": [{"role": "user", "content": content}]})).text

    assert "AT 0X7F12>" in rendered(".title()", "<function f at 0x7f12>").upper()
    with pytest.raises(BadConversation, match="writes a place in memory; call the method with brackets"):
        rendered(".title", "<function f at 0x7f12>")


@pytest.mark.parametrize("pattern", ["%s", "%d %-s", "%Es", "%10s", "%%%s", "%Z", "%z", "%d%-z", "%EZ", "%:z"])
def test_a_date_that_depends_on_the_time_zone_is_refused(pattern: str) -> None:
    with pytest.raises(BadConversation, match=r"strftime_now\('%.*[szZ]'\) depends on the time zone of the machine"):
        _render(f"{{{{ strftime_now('{pattern}') }}}}", date="2026-11-25")
    assert _render("{{ strftime_now('%%s %d %b %Y') }}", date="2026-11-25") == "%s 25 Nov 2026"


_ENDLESS = [
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "{% for i in range(99999) if range(99999) | select('none') | first %}{% endfor %}",
    "{% macro f(n) %}{% if n > 0 %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "{{ range(99999) | map('tojson') | map('list') | map('join') | map('indent', 9) | list | length * 1 }}" * 9,
]


@pytest.mark.parametrize("template", _ENDLESS)
def test_a_template_that_takes_too_long_is_no_bad_row_in_any_thread(
    template: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tokenloom.chat.template.MAX_SECONDS", 0.2)
    with ThreadPoolExecutor(1) as pool:
        errors = [pool.submit(_render, template).exception(), pool.submit(_render, "a").exception()]
    assert type(errors[0]) is InputError
    assert "the template takes more than" in str(errors[0])
    assert errors[1] is None


def test_a_build_ends_at_the_row_that_takes_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tokenloom.chat.template.MAX_SECONDS", 0.2)
    slow = "{% if messages[0].content == 'slow' %}" + _ENDLESS[0] + "{% endif %}"
    rows = [conversation("a", "b"), conversation("slow", "c")]
    spec = chat_spec(tmp_path, rows, slow + CHATML, documents={"on_error": "skip"})
    with pytest.raises(InputError, match=r", line 2 at byte \d+: the template takes more than 0 s; give another, or"):
        build(spec)


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__ }}{{ ''.__class__.__mro__ }}{{ ().__class__.__bases__[0].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ raise_exception.__globals__ }}{{ cycler.__init__.__globals__.os }}",
        "{{ ('{0.__class__.__mro__}' | attr('format'))('') }}",
        "{% include 'x' %}",
    ],
)
def test_no_template_leaves_the_sandbox(template: str) -> None:
    try:
        text = _render(template)
    except BadConversation:
        return
    assert text == ""  # an unsafe attribute is undefined


def test_the_reason_of_a_template_is_quoted() -> None:
    assert "render it (Roles must alternate); " in _problem("{{ raise_exception('Roles must\nalternate') }}")


def test_the_present_day_is_that_of_the_spec() -> None:
    template = "{% if strftime_now is defined %}{{ strftime_now('%d %b %Y %H') }}{% endif %}"
    assert _render(template, date="2026-11-25") == "25 Nov 2026 00"
    with pytest.raises(SpecError, match=r"give chat.date, such as 2026-11-25"):
        _render(template)
