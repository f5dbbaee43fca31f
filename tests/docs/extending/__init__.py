"""The modules that docs/guides/extending.md adds as examples; tests/docs/test_extending_page.py runs them."""
