"""Programs that write generated pages."""
