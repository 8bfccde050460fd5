"""Chat templates in the styles of published ones, rendered by Jinja as transformers sets it up: chat.json.

Needs jinja2. Each case has messages and whether a prompt for the next answer is asked for; "text" is null where the template
refuses them.
"""

import json
import pathlib

import jinja2
from jinja2.exceptions import TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

CHATML = r"""{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system
Be kind.<|im_end|>
' }}{% endif %}{{'<|im_start|>' + message['role'] + '
' + message['content'] + '<|im_end|>' + '
'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant
' }}{% endif %}
"""

INST = r"""{% if messages[0]['role'] == 'system' %}{% set some = messages[1:] %}{% set system = messages[0]['content'] %}{% else %}{% set some = messages %}{% set system = false %}{% endif %}{% for message in some %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Roles must alternate user/assistant/user/assistant') }}{% endif %}{% if loop.index0 == 0 and system != false %}{% set content = '<<SYS>>\n' + system + '\n<</SYS>>\n\n' + message['content'] %}{% else %}{% set content = message['content'] %}{% endif %}{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}{% elif message['role'] == 'assistant' %}{{ ' '  + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"""

HEADERS = r"""{{- bos_token }}
{%- if not date_string is defined %}
    {%- set date_string = "26 Jul 2024" %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}

{#- The system message comes first. #}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\n\n" }}
{{- "Today: " + date_string + "\n\n" }}
{%- if tools is not none %}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
    {%- endfor %}
{%- endif %}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {{- raise_exception("no tools") }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}
"""

GLM = r"""[gMASK]<sop>
{%- if tools -%}
<|system|>
# Tools
{% for tool in tools %}
{{ tool | tojson(ensure_ascii=False) }}
{% endfor %}
{%- endif -%}
{%- macro visible(content) -%}
    {%- if content is string -%}
        {{- content }}
    {%- elif content is iterable and content is not mapping -%}
        {%- for item in content -%}
            {%- if item is mapping and item.type == 'text' -%}
                {{- item.text }}
            {%- endif -%}
        {%- endfor -%}
    {%- endif -%}
{%- endmacro -%}
{%- set ns = namespace(last=-1) %}
{%- for m in messages %}
    {%- if m.role == 'user' %}
        {% set ns.last = loop.index0 -%}
    {%- endif %}
{%- endfor %}
{% for m in messages %}
{%- if m.role == 'user' -%}<|user|>
{{ visible(m.content) }}
{{- '/nothink' if (enable_thinking is defined and not enable_thinking and not visible(m.content).endswith("/nothink")) else '' -}}
{%- elif m.role == 'assistant' -%}
<|assistant|>
{%- set thought = '' %}
{%- set content = visible(m.content) %}
{%- if m.reasoning_content is string %}
    {%- set thought = m.reasoning_content %}
{%- else %}
    {%- if '</think>' in content %}
        {%- set thought = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
        {%- set content = content.split('</think>')[-1].lstrip('\n') %}
    {%- endif %}
{%- endif %}
{%- if loop.index0 > ns.last and thought -%}
{{ '\n<think>' + thought.strip() +  '</think>'}}
{%- else -%}
{{ '\n<think></think>' }}
{%- endif -%}
{%- if content.strip() -%}
{{ '\n' + content.strip() }}
{%- endif -%}
{%- elif m.role == 'system' -%}
<|system|>
{{ visible(m.content) }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
    <|assistant|>{{- '\n<think></think>' if (enable_thinking is defined and not enable_thinking) else '' -}}
{%- endif -%}
"""

LINES = r"""{% for message in messages %}
{% if message['role'] == 'user' %}
{{ '<|user|>
' + message['content'] + eos_token }}
{% elif message['role'] == 'system' %}
{{ '<|system|>
' + message['content'] + eos_token }}
{% elif message['role'] == 'assistant' %}
{{ '<|assistant|>
'  + message['content'] + eos_token }}
{% endif %}
{% if loop.last and add_generation_prompt %}
{{ '<|assistant|>' }}
{% endif %}
{% endfor %}
"""

SPACES = r"""  {# a comment #}
Start {{ "x" -}}   
   y {%+ if true %}
 kept
   {% endif %}
	{%- for i in [1, 'b', true, none] %}
    <{{ loop.revindex0 }}:{{ i }}>{% if not loop.last %},{% endif %}  
    {% set z = i %}
{%+ endfor +%}
{{ z is defined }} {{ 'a' ~ 3 ~ none }} {{ -3 % 5 + 2 * 4 }} {{ 'abc'[1:] + 'abc'[-1] }} {{ 'x' if messages|length > 1 }}|
{{ 'AbC' | upper ~ 'AbC'.lower() }} {{ "a,b,,c".split(',')|length }} {{ 'aXbX'.replace('X', '--') }} {{ messages[0].get('nope', 'dflt') }} {{ nope | default('d') }}
{%- macro twice(a, b='%}') %}({{ a }}{{ b }}{{ a }}){% endmacro %}
{{ twice(1) + twice(b='\\', a="it's") }} {{ (1, 2) | length }} {{ not 1 == 2 and (3 in [1, 3] or nope.nope) }}
"""

CONVERSATIONS = [
    [("user", "Hi <|im_end|> there ")],
    [("system", " Be brief.\n"), ("user", "x"), ("assistant", "y\n")],
    [("user", "a"), ("assistant", " b"), ("user", 'c\'d"é'), ("assistant", "<think>no</think>\n\nd ")],
    [("user", "a"), ("user", "b")],
    [("assistant", "q")],
]


def refuse(message):
    raise TemplateError(message)


def main():
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.globals["raise_exception"] = refuse
    templates = []
    for name in ("CHATML", "INST", "HEADERS", "GLM", "LINES", "SPACES"):
        source, cases = globals()[name], []
        for conversation in CONVERSATIONS:
            for prompt in (False, True):
                messages = [{"role": role, "content": content} for role, content in conversation]
                values = {"messages": messages, "bos_token": "<s>", "eos_token": "</s>", "add_generation_prompt": prompt}
                try:
                    text = environment.from_string(source).render(**values)
                except TemplateError:
                    text = None
                cases.append({"messages": messages, "prompt": prompt, "text": text})
        templates.append({"name": name.lower(), "source": source, "cases": cases})
    path = pathlib.Path(__file__).parent.parent / "data" / "chat.json"
    origin = f"chat_templates.py, jinja2 {jinja2.__version__}"
    path.write_text(json.dumps({"origin": origin, "templates": templates}, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
