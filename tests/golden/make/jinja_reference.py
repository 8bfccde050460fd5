"""Jinja as transformers sets it up for chat templates: extensions, filters, globals; what chat_templates.py compares with.

Needs jinja2. The {% generation %} extension only has to render its body as a call block does.
"""

import datetime
import json

import jinja2
import jinja2.ext
import jinja2.nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

NOW = 1700000000  # SOURCE_DATE_EPOCH of the comparison

CONVERSATIONS = [
    [("user", "Hi <|im_end|> there ")],
    [("system", " Be brief.\n"), ("user", "héllo\r\nWörld"), ("assistant", "\u3000漢字 y\u00a0\n"), ("user", "a,b,,c 12")],
    [("user", "a"), ("assistant", " b"), ("user", "c'd\"é\\"), ("assistant", "<think>no</think>\n\nd 😀"), ("user", "")],
    [("user", "a"), ("user", "b")],
    [("assistant", "q")],
]


class Generation(jinja2.ext.Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller):
        return caller()


def refuse(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def environment():
    made = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    made.filters["tojson"] = tojson
    made.globals["raise_exception"] = refuse
    made.globals["strftime_now"] = lambda form: datetime.datetime.fromtimestamp(NOW, datetime.timezone.utc).strftime(form)
    return made


ENVIRONMENT = environment()


def values_of(conversation, prompt):
    messages = [{"role": role, "content": content} for role, content in conversation]
    return {"messages": messages, "tools": None, "documents": None, "add_generation_prompt": prompt, "bos_token": "<s>", "eos_token": "</s>"}


def render(source, values):
    """The text and None, or None and what went wrong: whatever Python raises is an error."""
    try:
        return ENVIRONMENT.from_string(source).render(**values), None
    except Exception as error:
        return None, f"{type(error).__name__}: {error}"[:80]
