"""What the web page shows and does beyond the overview: tables, details, searches and publishing."""

__all__: list[str] = []
