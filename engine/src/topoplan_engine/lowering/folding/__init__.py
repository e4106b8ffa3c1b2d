"""Folding of staged iterations: tasks for one device of each class, before any task is written for all of them.

All devices of a stage run one program, so that an iteration is given by what its *messages* go along, of which there
are few kinds: collectives of a communicator, transfers between two meshes.  Devices are equal if nothing of that tells
them apart: what they compute, with whom they communicate, and which links their messages load how much.

    strategy ─► Patterns: devices, groups, messages ──► messages as a task graph ─► the simulator: loads of links
                    │                                                                     │
                    └──────────────► classes (color refinement) ◄─────────────────────────┘
                                        │
                                        └─► FoldedLayout ─► tasks of one device of each class ─► FoldedIteration

Why it is exact.  Classes are an equitable partition of the graph of devices, groups, messages and links, whose edges
have loads: each member of a class has as many neighbours of each other class, along edges of each load, as any other
member.  Tasks of one class so wait for tasks of the same classes, and all links of a class carry the same loads.  Rates
that are max-min fair, as all that follows from loads alone, are then the same for all messages of a class, and by
induction over events all tasks of a class begin and end together.  So the message that represents a class puts on each
link that represents one what all messages of its class put there, and gets the rate that each of them gets.

Color refinement: Berkholz, Bonsma, Grohe, Tight Lower and Upper Bounds for the Complexity of Canonical Colour
Refinement, Theory Comput. Syst. 60 (2017).  No table has an entry for each pair of devices or hosts.
"""

from __future__ import annotations
