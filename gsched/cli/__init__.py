"""One module per command, plus option groups, rendering and directives."""
