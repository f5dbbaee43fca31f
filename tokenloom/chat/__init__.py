"""Conversations: their layouts, the template that renders them, and the ids and classes of their tokens."""
