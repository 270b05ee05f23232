"""Write a corpus of questions with human answers from Python's own standard library, which is on every machine.

    python examples/train/ablations/stdlib_corpus.py corpus.jsonl

A row asks for a function by its signature and documentation, and answers with its source; or asks about a topic of
Python's language reference, and answers with the text of `help()`.
"""

import ast
import json
import re
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from pydoc_data import topics

LEAVE_OUT = {"site-packages", "test", "tests", "idlelib", "lib2to3", "encodings", "pydoc_data"}
LINES = range(4, 60)  # of a function's source


def functions() -> Iterator[dict[str, str]]:
    root = Path(sysconfig.get_path("stdlib"))
    for path in sorted(root.rglob("*.py")):
        if LEAVE_OUT & set(path.relative_to(root).parts):
            continue
        try:
            source = path.read_text()
            tree = ast.parse(source)
        except (SyntaxError, UnicodeDecodeError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and (doc := ast.get_docstring(node)):
                code = ast.get_source_segment(source, node) or ""
                if len(code.splitlines()) in LINES:
                    module = ".".join(path.relative_to(root).with_suffix("").parts)
                    about = doc.split("\n\n")[0]
                    yield {
                        "prompt": f"Write the Python function `{node.name}` of the module `{module}`: {about}",
                        "response": f"```python\n{code}\n```",
                    }


def language() -> Iterator[dict[str, str]]:
    for name, text in topics.topics.items():
        for number, part in enumerate(re.split(r"\n\n\n", text.strip())):
            if len(part) > 200:
                which = "" if number == 0 else f", part {number + 1}"
                yield {"prompt": f"Explain this topic of Python: {name}{which}.", "response": part}


if __name__ == "__main__":
    rows = [*functions(), *language()]
    Path(sys.argv[1]).write_text("".join(json.dumps(row) + "\n" for row in rows))
    print(f"{len(rows)} rows, {sum(len(row['response']) for row in rows):,} characters of answers")
