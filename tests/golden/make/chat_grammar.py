"""Random chat templates: statements and expressions of Jinja, most of them with a meaning, some not. Used by
chat_templates.py."""

import random

STRINGS = ["''", "'a'", "'\\n'", "' b '", "\"it's\"", "'é'", "'<|im_end|>'", "'user'", "'漢字'", "'a,b,,c'", "'Hello World'",
           "'x\\ty'", "'\\u00e9\\x41'", "'-'", "'\u3000w\u00a0'"]
NUMBERS = ["0", "1", "2", "3", "-1", "10", "7", "1_000", "0x1F", "2.5", "0.1", "1e3", "9007199254740993"]
NAMES = ["x", "y", "n", "s", "messages", "bos_token", "eos_token", "add_generation_prompt", "tools", "nope", "m"]
FILTERS = ["trim", "upper", "lower", "title", "capitalize", "length", "first", "last", "list", "string", "reverse", "join",
           "join(', ')", "default('d')", "default('d', true)", "tojson", "tojson(indent=2)", "int", "float", "abs", "sort",
           "unique|list", "replace('a', 'b')", "replace(new='b', old='l')", "replace('l', '', 1)", "round", "sum", "min", "max", "items|list",
           "dictsort", "map('upper')|list", "select|list", "reject('none')|list", "select('string')|list", "batch(2)|list",
           "indent", "indent(2, true)", "wordcount", "trim('a ')", "d(1)", "count", "tojson(sort_keys=true)",
           "tojson(separators=(',', ':'))", "map(attribute='role')|join('-')", "selectattr('role', 'equalto', 'user')|list|length",
           "rejectattr('role', 'eq', 'user')|map(attribute='content')|join('|')", "sort(attribute='content')|map(attribute='role')|list",
           "sort(reverse=true)", "map('length')|sum", "selectattr('content')|list|count", "e", "truncate(3)", "wrong"]
TESTS = ["defined", "undefined", "none", "string", "number", "integer", "float", "mapping", "sequence", "iterable", "boolean", "true",
         "false", "odd", "even", "divisibleby(2)", "divisibleby 3", "in [1, 'a']", "eq 'a'", "ne(1)", "gt 1", "lt(3)", "upper", "lower",
         "callable", "sameas none", "sameas(true)", "filter", "test", "ge 2", "equalto('user')"]
METHODS = ["strip()", "lstrip()", "rstrip('\\n')", "strip('ab ')", "upper()", "lower()", "split()", "split(',')", "split(',', 1)",
           "split(sep='l', maxsplit=1)", "rsplit(',', 1)", "startswith('a')", "endswith(('b', 'a'))", "replace('a', 'é')",
           "replace('l', 'L', 1)", "title()", "capitalize()", "find('l')", "count('l')", "splitlines()", "removeprefix('a')",
           "removesuffix('d')", "isdigit()", "isalpha()", "isspace()", "partition(',')", "join(['1', '2'])", "items()", "keys()|list",
           "get('role')", "get('nope', 'z')", "values()|list", "index('a')", "append(1)", "format(1)", "strip(1)", "strip('a', 'b')",
           "rfind('l')", "swapcase()", "nope()", "copy()"]
SLICES = ["[0]", "[-1]", "[1:]", "[:1]", "[:-1]", "[::-1]", "[::2]", "[1:3]", "[-2:]", "['role']", "['content']", ".role", ".content",
          "[:4]", "[5]", "[x]", ".0", "[true]", "[1:'a']", "[3:0:-1]", "[-3::-2]", "['nope']", ".nope"]
LOOP = ["loop.index", "loop.index0", "loop.first", "loop.last", "loop.length", "loop.revindex", "loop.revindex0", "loop.depth",
        "loop.previtem is defined", "loop.nextitem is defined", "loop.cycle('a', 'b')", "loop.changed(m.role)", "(loop.nextitem or {}).role",
        "loop.previtem.role if not loop.first", "loop.depth0"]
LISTS = ["messages", "messages[1:]", "messages[::-1]", "[1, 2, 3]", "range(3)", "range(4, 0, -1)", "'abé'", "['a', 'b']", "(1, 'z')",
         "messages|selectattr('role', 'eq', 'user')", "messages|map(attribute='content')", "nope", "{'a': 1, 'b': 2}", "s.split()",
         "messages|rejectattr('role', 'in', ['system'])|list", "messages|reverse", "none", "[[1, 2], [3, 4]]", "[]"]

HEAD = "{%- set ns = namespace(v=1, w='') -%}\n{% macro say(a, b='d') %}[{{ a }}|{{ b }}]{% endmacro %}\n"


class Grammar:
    def __init__(self, seed):
        self.r = random.Random(seed)
        self.loops = 0

    def pick(self, options):
        return self.r.choice(options)

    def atom(self):
        kind = self.r.random()
        if kind < 0.25:
            return self.pick(STRINGS)
        if kind < 0.40:
            return self.pick(NUMBERS)
        if kind < 0.60:
            return self.pick(NAMES)
        if kind < 0.80:
            return self.pick(["m.content", "m.role", "m['content']", "m", "messages[0].content", "messages|length", "messages[-1]['role']"])
        if kind < 0.88 and self.loops:
            return self.pick(LOOP)
        return self.pick(["true", "false", "none", "[1, 2, 'a']", "{'a': 1, 'b': [x]}", "(1, 2)", "[]", "ns.v", "range(3)", "dict(a=1)"])

    def expression(self, depth=2):
        if depth == 0:
            return self.atom()
        kind = self.r.random()
        inner = lambda: self.expression(depth - 1)
        if kind < 0.20:
            return self.atom()
        if kind < 0.36:
            return f"{inner()}{self.pick(['|', ' | '])}{self.pick(FILTERS)}"
        if kind < 0.44:
            return f"({inner()}).{self.pick(METHODS)}"
        if kind < 0.54:
            return f"({inner()}){self.pick(SLICES)}"
        if kind < 0.60:
            return f"{inner()} {self.pick(['+', '-', '*', '/', '//', '%', '**'])} {inner()}"
        if kind < 0.72:
            return f"{inner()} ~ {inner()}"
        if kind < 0.80:
            return f"{inner()} {self.pick(['==', '!=', '<', '>=', 'in', 'not in', '>', '<='])} {inner()}"
        if kind < 0.86:
            return f"{inner()} is {self.pick(['', 'not '])}{self.pick(TESTS)}"
        if kind < 0.90:
            return f"{inner()} {self.pick(['and', 'or'])} {inner()}"
        if kind < 0.93:
            return f"not {inner()}"
        if kind < 0.97:
            return f"({inner()} if {inner()} else {inner()})"
        return self.pick([f"({inner()} if {inner()})", f"say({inner()})", f"say(b={inner()}, a=1)", f"say({inner()}, 1, 2)", f"-{inner()}",
                          f"{inner()} < {inner()} <= {inner()}", "strftime_now('%Y-%m-%d')", f"-{inner()}|abs"])

    def text(self):
        return self.pick(["", " ", "\n", "a", "  b\n", "\n\n", " \t ", "<|im_start|>", "é\u00a0", "\u3000\n", "\r\n", "}}", "{ x }", "'", "  "])

    def tag(self, inside, sign="%"):
        left, right = self.pick(["", "", "-", "+"]), self.pick(["", "", "-", "+" if sign == "%" else ""])
        open_, close = ("{%", "%}") if sign == "%" else ("{{", "}}")
        return f"{open_}{left} {inside} {right}{close}"

    def block(self, depth):
        return "".join(self.statement(depth) for _ in range(self.r.randint(1, 3)))

    def loop(self, depth):
        target = self.pick(["m", "m", "m", "x", "a, b"])
        head = f"for {target} in {self.pick(LISTS)}"
        if self.r.random() < 0.25:
            head += f" if {self.expression(1)}"
        self.loops += 1
        body = self.block(depth - 1)
        if self.r.random() < 0.2:
            body += self.tag(f"if {self.expression(1)}") + self.tag(self.pick(["break", "continue"])) + self.tag("endif")
        body += self.text()
        self.loops -= 1
        other = self.tag("else") + self.block(depth - 1) if self.r.random() < 0.15 else ""
        return self.tag(head) + body + other + self.tag("endfor")

    def statement(self, depth):
        kind = self.r.random()
        if depth == 0 or kind < 0.40:
            return self.text() + self.tag(self.expression(), "{") + self.text()
        if kind < 0.60:
            return self.loop(depth)
        if kind < 0.76:
            body = self.tag(f"if {self.expression()}") + self.block(depth - 1)
            if self.r.random() < 0.3:
                body += self.tag(f"elif {self.expression(1)}") + self.block(depth - 1)
            if self.r.random() < 0.5:
                body += self.tag("else") + self.block(depth - 1)
            return body + self.tag("endif")
        if kind < 0.88:
            return self.tag(f"set {self.pick(['x', 'y', 's', 'ns.v', 'ns.w', 'm', 'x, y', 'bos_token', 'messages'])} = {self.expression()}")
        return self.pick([
            self.tag("set x") + self.block(depth - 1) + self.tag("endset"),
            self.tag("set s | trim") + self.block(depth - 1) + self.tag("endset"),
            self.tag("filter upper") + self.block(depth - 1) + self.tag("endfilter"),
            self.tag(f"with x = {self.expression(1)}, q = x") + self.block(depth - 1) + self.tag("endwith"),
            self.tag("generation") + self.block(depth - 1) + self.tag("endgeneration"),
            self.tag(f"macro m1(x, y={self.expression(1)})") + self.block(depth - 1) + self.tag("endmacro") + "{{ m1(2) }}",
            self.tag("call say(1)") + self.block(depth - 1) + self.tag("endcall"),
            self.tag("macro c(a)") + "{{ caller(a) }}" + self.tag("endmacro") + self.tag("call(z) c(3)") + "{{ z }}" + self.tag("endcall"),
            "{# " + self.text() + self.pick([" #}", " -#}", " +#}"]),
            "{%- raw %} {{ x }} {% endraw -%}",
        ])

    def template(self, renders=None):
        """Several statements; of those that do not render (renders(source) is false) most are left out."""
        source = self.pick(["", HEAD, HEAD])
        for _ in range(self.r.randint(2, 6)):
            self.loops = 0
            more = self.statement(2)
            if renders is None or renders(source + more) or self.r.random() < 0.01:
                source += more
        return source

    def soup(self):
        """A template with something taken out, doubled or exchanged: most are errors."""
        s = list(self.template())
        for _ in range(self.r.randint(1, 4)):
            at = self.r.randrange(len(s) + 1)
            what = self.r.random()
            if what < 0.4 and at < len(s):
                del s[at : at + self.r.randint(1, 4)]
            elif what < 0.7:
                s.insert(at, self.pick(list("{}%#'\"()[]|.,:~+-*/=<> \n01aé") + ["is ", "not ", "in ", "if ", "else ", "for ", "{% ", "%}", "{{", "}}"]))
            elif at < len(s):
                s[at] = self.pick(s)
        return "".join(s)
