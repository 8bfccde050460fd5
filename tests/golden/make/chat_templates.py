"""Chat templates and what Jinja, as transformers sets it up, makes of them: chat.json.

Needs jinja2. Styles of published templates, short ones for each construct, and random ones of chat_grammar.py: 500 that
mostly render, 200 that are broken. Each has three conversations or more; "text" is null where Jinja refuses. Without
arguments it writes chat.json. `chat_templates.py FILE SEED COUNT` writes COUNT random and COUNT broken ones of another seed;
MEZZO_CHAT=FILE makes golden_test_chat compare these.
"""

import json
import pathlib
import sys
import warnings

import jinja2

import chat_grammar
import jinja_reference as reference

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

# Short ones, a construct or two each: what chat templates use, and what is easily got wrong.
SHORT = [
    "{% for m in messages if m.role == 'user' %}[{{ m.content }}]{% else %}none{% endfor %}",
    "{% for m in messages[::-1] %}{{ loop.revindex }}:{{ m.role }} {% endfor %}",
    "{% for m in messages %}{{ loop.index }}/{{ loop.length }} {{ loop.cycle('a', 'b') }} {{ loop.changed(m.role) }}\n{% endfor %}",
    "{% for m in messages %}{% if loop.nextitem is defined %}{{ loop.nextitem.role }}>{% endif %}{{ loop.previtem.role if loop.previtem }}{% endfor %}",
    "{% for m in messages %}{% if m.role == 'system' %}{% continue %}{% endif %}{% if loop.index > 3 %}{% break %}{% endif %}{{ m.content }}{% endfor %}",
    "{{ messages | map(attribute='content') | map('trim') | join(' / ') }}",
    "{{ messages | selectattr('role', 'equalto', 'user') | list | length }}|{{ messages | rejectattr('role', 'in', ['user']) | map(attribute='role') | list }}",
    "{% set users = messages | selectattr('role', '==', 'user') | list %}{{ users[-1].content if users else '' }}",
    "{{ messages | tojson }}\n{{ messages[0] | tojson(indent=4) }}",
    "{{ {'b': [1, 2.5, none, true], 'a': {'é': '\\n'}} | tojson(sort_keys=true) }}{{ {'a': 1} | tojson(separators=(',', ':')) }}{{ 'é' | tojson(ensure_ascii=true) }}",
    "{% set t = {'name': 'f', 'parameters': {'type': 'object', 'properties': {}, 'required': []}} %}{{ t | tojson(indent=2) }}",
    "{% for k, v in {'x': 1, 'y': [2]}.items() %}{{ k }}={{ v }};{% endfor %}{% for k, v in messages[0] | dictsort %}{{ k }}{% endfor %}",
    "{% for i in range(messages | length - 1, -1, -1) %}{{ i }}{{ messages[i].role[0] }}{% endfor %}",
    "{{ range(0, 10, 3) | list }}{{ range(3) | sum }}{{ 4 in range(5) }}",
    "{{ messages[0].content[:4] }}|{{ messages[-1]['content'][::-1] }}|{{ messages[0].content[-3:] }}|{{ 'héé'[1:][::-1] }}",
    "{{ 'é'.strip('è') }}{{ '\u3000 x\u00a0'.strip() }}|{{ messages[0].content | trim | length }}",
    "{% set ns = namespace(found=false, n=0) %}{% for m in messages %}{% if not ns.found and m.role == 'assistant' %}{% set ns.found = true %}{% set ns.n = loop.index %}{% endif %}{% endfor %}{{ ns.found }}{{ ns.n }}",
    "{% set x = 1 %}{% for m in messages %}{{ x }}{% set x = x + 1 %}{{ x }}{% endfor %}{{ x }}",
    "{% for m in messages %}{{ bos_token }}{% endfor %}{% set bos_token = 'late' %}{{ bos_token }}",
    "{% if add_generation_prompt %}{% set y = 'p' %}{% endif %}{{ y is defined }}{% for m in messages %}{% if loop.first %}{% set eos_token = 'e' %}{% endif %}{{ eos_token }}{% endfor %}",
    "{% macro f(a, b='x', c=none) %}<{{ a }}{{ b }}{{ c }}>{% endmacro %}{{ f(1) }}{{ f(c=2, a=3) }}{{ f(1, nope) }}",
    "{% macro f(m) %}{{ m.role }}{{ loop is defined }}{% endmacro %}{% for m in messages %}{{ f(m) }}{{ loop.index }}{% endfor %}",
    "{% macro outer(x) %}{% macro inner(y) %}{{ x }}{{ y }}{% endmacro %}{{ inner('!') }}{% endmacro %}{{ outer('a') }}",
    "{% macro f(a) %}{{ a }}{% endmacro %}{{ f(1, 2) }}",
    "{% macro f(a) %}{{ a }}{% endmacro %}{{ f(b=2) }}",
    "{% macro f(a) %}{{ a }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ f(1, 2, z=3) }}",
    "{% macro wrap(tag) %}<{{ tag }}>{{ caller() }}</{{ tag }}>{% endmacro %}{% call wrap('b') %}{{ messages[0].role }}{% endcall %}",
    "{{ 'a b'.replace(' ', '_') }}{{ 'aaa' | replace('a', 'b', 2) }}{{ 'abc' | replace(new='z', old='a') }}",
    "{{ messages == messages[:] }}{{ messages[0] == messages[-1] }}{% for m in messages %}{{ m == messages[-1] }}{% endfor %}{{ (1, 2) == [1, 2] }}",
    "{{ true is number }}{{ true is integer }}{{ 1 == true }}{{ 1 == 1.0 }}{{ 'a' == 1 }}{{ none is none }}{{ [] == [] }}{{ nope == nada }}",
    "{{ 7 // 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 2 ** 10 }} {{ 1_000 * 3 }} {{ 9007199254740993 + 1 }} {{ 0.1 + 0.2 }} {{ 1e16 }} {{ 1e-5 }}",
    "{{ 9223372036854775807 }}",
    "{{ 'x' ~ 1 ~ none ~ true ~ 1.0 ~ [1, 'a'] ~ {'k': 'v'} ~ (1,) }}",
    "{{ not nope }}{{ nope | default('d') }}{{ '' | default('e', true) }}{{ none | default('n') }}{{ nope | length }}{% for x in nope %}x{% endfor %}",
    "{{ nope.a }}",
    "{{ 'a' + 1 }}",
    "{{ 'a' in 'abc' and 'b' not in ['a'] }}{{ 'role' in messages[0] }}{{ 1 < 2 < 3 }}{{ 'a' < 'b' }}",
    "{{ messages[0].items is defined }}{{ messages[0]['items'] is defined }}{{ messages[0].get('nope', 'd') }}{{ messages[0].keys() | list }}",
    "{% set a, b = 'x', 'y' %}{{ b }}{{ a }}{% set t = (1, 2) %}{{ t }}{% set l = [1] + [2] %}{{ l }}",
    "{% set c %} captured {{ messages[0].role }} {% endset %}[{{ c | trim }}]{% set d | upper %}up{% endset %}{{ d }}",
    "{% filter upper %}{{ messages[0].role }} é{% endfilter %}{% with q = 1, r = 2 %}{{ q + r }}{% endwith %}",
    "{% raw %}{{ not }} {% this %}{% endraw %}\n{%- raw -%}  x  {%- endraw -%}  y",
    "  {% if true %}  \n  a\n  {% endif %}\n  {{ 'b' }}  \n{%- if true -%}  c  {%- endif -%}  d\n\n",
    "a\r\n{% if true %}\r\nb\r{% endif %}\r\nc\r\n",
    "a {#- x -#} b {# y #}\n c {#+ z +#}\n d",
    "{%+ if true +%}\n  x\n  {%+ endif +%}\n",
    "\u3000{%- if true -%}\u2003x\u00a0{%- endif %}\u3000\n",
    "{% for m in messages %}{% generation %}{{ m.content }}{% set inside = 1 %}{% endgeneration %}{{ inside is defined }}{% endfor %}",
    "{{ strftime_now('%d %b %Y') }}{{ strftime_now('%Y-%m-%d') }}",
    "{% if messages[0].role != 'user' %}{{ raise_exception('Only users begin: ' ~ messages[0].role) }}{% endif %}ok",
    "{% for row in [[1, [2, 3]], [4, [5, 6]]] recursive %}{% if row is iterable %}({{ loop(row) }}){% else %}{{ row }}@{{ loop.depth }}{% endif %}{% endfor %}",
    "{{ ['b', 'A', 'c'] | sort }}{{ ['b', 'A'] | sort(case_sensitive=true) }}{{ [3, 1] | sort(reverse=true) }}{{ messages | sort(attribute='content') | map(attribute='role') | join }}",
    "{{ [1, 2, 2, 1] | unique | list }}{{ [3, 1, 2] | max }}{{ [3, 1] | min }}{{ [1, 2, 3, 4, 5] | batch(2) | list }}{{ 'abc' | reverse }}{{ [1, 2] | reverse | list }}",
    "{{ '12' | int + 1 }}{{ 'x' | int(7) }}{{ '2.7' | int }}{{ '2.50' | float }}{{ 2.567 | round(2) }}{{ 2.5 | round }}{{ 7 | round }}{{ -3 | abs }}",
    "{{ 'one\ntwo\n\nthree' | indent }}|{{ 'a\nb' | indent(2, true) }}|{{ 'a\n\nb' | indent(1, blank=true) }}",
    "{{ 'hello world-wide' | title }}{{ 'hELLO' | capitalize }}{{ 'ÀÉß'.lower() }}{{ 'жé' | upper }}{{ \"it's\".title() }}",
    "{{ 'a,b,,c'.split(',') }}{{ ' a  b '.split() }}{{ 'a,b,c'.split(',', 1) }}{{ 'a,b,c'.rsplit(',', 1) }}{{ 'a\nb\r\n'.splitlines() }}",
    "{% set content = messages[-1].content %}{% if '</think>' in content %}{% set content = content.split('</think>')[-1].lstrip('\n') %}{% endif %}{{ content }}",
    "{% set loop_messages = messages[1:] if messages[0].role == 'system' else messages %}{% for m in loop_messages %}{{ '<|' ~ m.role ~ '|>' ~ m.content | trim }}{% endfor %}",
    "{{ ((((((((((messages[0].role)))))))))) }}",
    "{% for m in messages %}{{ (loop.index0 % 2 == 0) == (m.role == 'user') }}{{ '\n' if not loop.last else eos_token }}{% endfor %}",
    "{% if tools is not none and tools %}T{% elif documents is defined %}D{% else %}-{% endif %}{{ pad_token is defined }}",
    "{% if m is defined %}x{% endif %}{% for m in messages %}{% set last = m %}{% endfor %}{{ last is defined }}{{ m is defined }}",
    "{{ '\\x41\\u00e9\\'\\q' }}{{ \"a\" 'b' }}{{ 'tab\\tnl\\n' }}",
    "{{ 'x'.format(1) }}",
    "{{ messages.append(1) }}",
    "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% elif m.content is iterable %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endif %}{% endfor %}",
    "{% break %}",
    "{{ 'άέώς ñandú ёж' | upper }}{{ 'ΆΈΏ ÑÜ ЁЖ'.lower() }}{{ 'aªbº élan'.title() }}{{ 'éA'.swapcase() }}{{ ['é\u00a0', '\u3000'] }}",
    "{% set x = messages | selectattr('role', 'eq', 'assistant') | map(attribute='content') | list | last | default('no answer', true) %}{{ x }}",
    "{{ messages[0]['content'].startswith(('H', 'h')) }}{{ 'x.py'.endswith('.py') }}{{ 'abcabc'.find('c') }}{{ 'é漢c'.index('c') }}{{ 'aXbX'.count('X') }}",
]


def renders(source):
    return reference.render(source, reference.values_of(reference.CONVERSATIONS[1], True))[0] is not None


def template(name, source, conversations):
    cases = []
    for conversation in conversations:
        for prompt in (False, True) if len(conversations) > 3 else (True,):
            values = reference.values_of(conversation, prompt)
            text, error = reference.render(source, values)
            cases.append({"messages": values["messages"], "prompt": prompt, "text": text})
    return {"name": name, "source": source, "cases": cases}


def random_ones(seed, whole, broken):
    for i in range(whole + broken):
        grammar = chat_grammar.Grammar(seed + i)
        source = grammar.template(renders) if i < whole else grammar.soup()
        yield template(f"{'random' if i < whole else 'broken'} {seed + i}", source, reference.CONVERSATIONS[1:4])


def main():
    warnings.simplefilter("ignore", SyntaxWarning)
    path = pathlib.Path(__file__).parent.parent / "data" / "chat.json"
    if len(sys.argv) > 1:
        path, seed, count = pathlib.Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
        templates = list(random_ones(seed, count, count))
    else:
        templates = [template(name.lower(), globals()[name], reference.CONVERSATIONS) for name in
                     ("CHATML", "INST", "HEADERS", "GLM", "LINES", "SPACES")]
        templates += [template(f"short {i}", source, reference.CONVERSATIONS[1:4]) for i, source in enumerate(SHORT)]
        templates += random_ones(1, 500, 200)
    conversations = []  # each is written once
    for entry in templates:
        for case in entry["cases"]:
            messages = case.pop("messages")
            if messages not in conversations:
                conversations.append(messages)
            case["of"] = conversations.index(messages)
    origin = f"chat_templates.py, jinja2 {jinja2.__version__}"
    lines = ",\n".join(json.dumps(entry, ensure_ascii=False) for entry in templates)
    path.write_text(f'{{"origin": {json.dumps(origin)}, "now": "{reference.NOW}", "conversations": '
                    f'{json.dumps(conversations, ensure_ascii=False)},\n"templates": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
