"""A simulated disk that loses power, fails calls and fills up."""

__all__: list[str] = []
