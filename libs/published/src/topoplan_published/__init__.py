"""Published measurements that plugins bring along: how their tables lie in a package, and how they are read."""
