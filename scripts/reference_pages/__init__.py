"""The pages of the reference that are made from the code: each module returns one page as Markdown."""
