"""What follows from shardings: the signatures of operators, resharding, and whether a program is sound."""
