"""Tests of the packages: what `pip install` puts on a machine without this repository and without a compiler."""
