"""How the code of a chat template is made: what Jinja makes, with counts in it, and faster where templates are slow.

The names of the filters here are none that a template can write, nor may give to `map`.
"""

from __future__ import annotations

from typing import Any

import jinja2
import jinja2.compiler
import jinja2.ext
import jinja2.parser
import jinja2.visitor
from jinja2 import nodes

ROUND, SUM, JOINED, HELD, BLOCK = "(round)", "(sum)", "(joined)", "(held)", "(block)"
READ, COMPARED, MADE = "(read)", "(compared)", "(made)"
OWN = frozenset([ROUND, SUM, JOINED, HELD, BLOCK, READ, COMPARED, MADE])
_MAX_FAST = 1000  # characters of a text whose methods take no time that matters
OF_DICT = frozenset(dir(dict))
OF_TEXT = frozenset(name for name in dir(str) if not name.startswith(("_", "format")))
_GROWING = {"center", "encode", "expandtabs", "join", "ljust", "replace", "rjust", "translate", "zfill"}
_SHORT = OF_TEXT - _GROWING  # methods whose results need no check
_COUNTED: tuple[Any, ...] = (nodes.For, nodes.Macro, nodes.CallBlock, nodes.FilterBlock)


def prepare(tree: nodes.Template) -> bool:
    """Count the rounds of loops, and what sums, joined texts and lists make, in the tree of a template.

    Returns:
        whether it has blocks of `generation`.

    Raises jinja2.TemplateSyntaxError if a loop ends in such a block.
    """
    _Operators().visit(tree)
    _give_variables(tree, (), in_block=False)
    counted = [node for node in tree.find_all(_COUNTED) if not isinstance(node, nodes.FilterBlock) or _is_block(node)]
    for node in counted:
        count = nodes.Const(num_literal_chars(node))
        node.body.insert(0, nodes.ExprStmt(_filter(count, ROUND)))
    return any(map(_is_block, counted))


def num_literal_chars(node: nodes.Node) -> int:
    """Return how many characters of the template's own a round of a loop can write."""
    texts = [data.data for data in node.find_all(nodes.TemplateData)]
    texts += [const.value for const in node.find_all(nodes.Const) if isinstance(const.value, str)]
    return sum(map(len, texts))


class Generation(jinja2.ext.Extension):
    """The tag `{% generation %} ... {% endgeneration %}` around what the assistant writes."""

    tags = {"generation"}  # noqa: RUF012  (Jinja declares it so)

    def parse(self, parser: jinja2.parser.Parser) -> list[nodes.Node]:
        """Return a block whose text is filtered, and before it, since it may set them, the variables for the filter."""
        line = next(parser.stream).lineno
        variables = parser.free_identifier(line)
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        block = nodes.FilterBlock(body, nodes.Filter(None, BLOCK, [variables], [], None, None), lineno=line)
        return [nodes.Assign(variables, nodes.Tuple([], "load"), lineno=line), block]


def _is_block(node: nodes.Node) -> bool:
    return isinstance(node, nodes.FilterBlock) and node.filter.name == BLOCK


def _give_variables(node: nodes.Node, names: tuple[str, ...], *, in_block: bool) -> None:
    """Give the blocks of `generation` the variables of the loops and macros around them, the innermost last."""
    if isinstance(node, nodes.For):
        names += tuple(name.name for name in _names(node.target))
        in_block = False
    elif isinstance(node, nodes.Macro):
        names += tuple(name.name for name in node.args)
    elif isinstance(node, nodes.Assign) and isinstance(node.target, nodes.InternalName):
        node.node = nodes.Tuple([nodes.Name(name, "load") for name in names], "load")
    elif isinstance(node, nodes.Break | nodes.Continue) and in_block:
        raise jinja2.TemplateSyntaxError("a loop can't end, or go on, in a block of generation", node.lineno)
    for child in node.iter_child_nodes():
        _give_variables(child, names, in_block=in_block or _is_block(node))


def _names(node: nodes.Node) -> list[nodes.Name]:
    return [*([node] if isinstance(node, nodes.Name) else []), *node.find_all(nodes.Name)]


class _Operators(jinja2.visitor.NodeTransformer):
    """Makes `a + b + c`, `a ~ b`, lists, tuples and objects filters of ours: an environment can't intercept them."""

    def visit_Add(self, node: nodes.Add, *args: Any, **kwargs: Any) -> nodes.Node:  # noqa: N802
        """Return a filter of all operands of a sum."""
        operands: list[nodes.Expr] = []
        left: nodes.Expr = node
        while isinstance(left, nodes.Add):
            operands.insert(0, left.right)
            left = left.left
        return _filter(nodes.List([self.visit(one, *args, **kwargs) for one in [left, *operands]]), SUM)

    def visit_Concat(self, node: nodes.Concat, *args: Any, **kwargs: Any) -> nodes.Node:  # noqa: N802
        """Return a filter of the operands."""
        self.generic_visit(node, *args, **kwargs)
        return _filter(nodes.List(node.nodes), JOINED)

    def visit_List(self, node: Any, *args: Any, **kwargs: Any) -> nodes.Node:  # noqa: N802
        """Return a filter of a list, unless its items are constants."""
        self.generic_visit(node, *args, **kwargs)
        parts = [pair.value for pair in node.items] if isinstance(node, nodes.Dict) else node.items
        return node if all(isinstance(part, nodes.Const) for part in parts) else _filter(node, HELD)

    visit_Dict = visit_List  # noqa: N815

    def visit_Tuple(self, node: nodes.Tuple, *args: Any, **kwargs: Any) -> nodes.Node:  # noqa: N802
        """Return a filter of a tuple that is not assigned to."""
        return self.visit_List(node, *args, **kwargs) if node.ctx == "load" else node

    def visit_Compare(self, node: nodes.Compare, *args: Any, **kwargs: Any) -> nodes.Node:  # noqa: N802
        """Return a comparison whose operands are counted, unless it is with a constant, which takes no time."""
        self.generic_visit(node, *args, **kwargs)
        for operand in node.ops:
            is_search = operand.op in ("in", "notin")
            if not (_is_constant(operand.expr) or (_is_constant(node.expr) and not is_search)):
                operand.expr = _filter(operand.expr, COMPARED)
        return node

    def visit_Getitem(self, node: nodes.Getitem, *args: Any, **kwargs: Any) -> nodes.Node:  # noqa: N802
        """Return an item, or a slice that is counted."""
        self.generic_visit(node, *args, **kwargs)
        return _filter(node, MADE) if isinstance(node.arg, nodes.Slice) else node

    def visit_For(self, node: nodes.For, *args: Any, **kwargs: Any) -> nodes.Node:  # noqa: N802
        """Return a loop that counts what its condition leaves out."""
        self.generic_visit(node, *args, **kwargs)
        if node.test is not None:
            node.iter = _filter(node.iter, READ)  # type: ignore[arg-type]
        return node


def _is_constant(node: nodes.Node) -> bool:
    return isinstance(node, nodes.Const) or (
        isinstance(node, nodes.List | nodes.Tuple) and all(isinstance(item, nodes.Const) for item in node.items)
    )


def _filter(value: nodes.Expr, name: str) -> nodes.Filter:
    return nodes.Filter(value, name, [], [], None, None)


class Compiler(jinja2.compiler.CodeGenerator):
    """Writes what templates do most without calls of our functions: keys of objects, methods of texts."""

    @jinja2.compiler.optimizeconst
    def visit_Getattr(self, node: nodes.Getattr, frame: jinja2.compiler.Frame) -> None:  # noqa: N802
        """Write how to get a key of an object."""
        if node.attr in OF_DICT:
            super().visit_Getattr(node, frame)
            return
        name, key = self.temporary_identifier(), repr(node.attr)
        self.write(f"({name}[{key}] if type({name} := ")
        self.visit(node.node, frame)
        self.write(f") is dict and {key} in {name} else environment.getattr({name}, {key}))")

    @jinja2.compiler.optimizeconst
    def visit_Call(  # noqa: N802
        self, node: nodes.Call, frame: jinja2.compiler.Frame, forward_caller: bool = False
    ) -> None:
        """Write a call of a method of a text."""
        method = node.node
        if not (isinstance(method, nodes.Getattr) and method.attr in _SHORT and _has_only_constants(node)):
            super().visit_Call(node, frame, forward_caller=forward_caller)
            return
        text = object.__new__(nodes.InternalName)  # as Jinja's parser makes one
        nodes.Node.__init__(text, self.temporary_identifier())
        arguments = ", ".join(repr(argument.as_const()) for argument in node.args)
        self.write(f"({text.name}.{method.attr}({arguments}) if type({text.name} := ")
        self.visit(method.node, frame)
        self.write(f") is str and len({text.name}) < {_MAX_FAST} else ")
        method.node = text
        super().visit_Call(node, frame, forward_caller=forward_caller)
        self.write(")")

    def _output_child_pre(self, *_: Any) -> None:
        self.write("environment.written(")

    def _output_child_post(self, *_: Any) -> None:
        self.write(")")


def _has_only_constants(call: nodes.Call) -> bool:
    if call.kwargs or call.dyn_args is not None or call.dyn_kwargs is not None:
        return False
    return all(isinstance(argument, nodes.Const) for argument in call.args)
