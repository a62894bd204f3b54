"""Markdown tables and the formatting of figures."""


def table(head, rows):
    """Columns of numbers are aligned to the right."""
    rows = list(rows)
    if not rows:
        return "Not measured."
    numbers = [all(row[i].strip("*")[:1] in "-0123456789" for row in rows) for i in range(len(head))]
    lines = [head, ["--:" if number else ":--" for number in numbers], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def show(seconds):
    return f"{seconds * 1e3:,.3f} ms" if seconds >= 1e-4 else f"{seconds * 1e6:,.1f} us"


def best(records, **what):
    """The fastest of PyTorch's matching records."""
    found = [record for record in records if all(record.get(key) == value for key, value in what.items())]
    return min(found, key=lambda record: record["seconds"], default=None)


def share(flops, seconds, ceiling):
    return f"{flops / seconds / ceiling:.1%}" if flops and ceiling else "-"


def speed(record, flops):
    return f"{flops / record['seconds'] * 1e-12:.3g}" if record else "-"


def ratio(record, seconds):
    return f"**{record['seconds'] / seconds:.2f}**" if record else "-"
