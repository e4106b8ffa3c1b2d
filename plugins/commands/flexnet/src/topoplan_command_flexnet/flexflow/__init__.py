"""``topoplan flexflow``: command lines of FlexFlow's own programs, planned and simulated instead of trained."""
