"""Symmetry reduction: parts of an iteration that nothing tells apart are simulated once.

    Pieces ─► class_key: has a strategy of this class been simulated?
      └────► PartTable ─► equitable_partition ─► quotient ─► one task for each class

On a network that treats all hosts alike, most strategies leave many parts of operators in the same situation: same
times, same neighbours, devices with the same load.  `refinement` finds classes of parts such that each part of a class
sees as many neighbours of every class as any other part of it (an equitable partition); where the classes of devices
are known, `known_devices` finds those of parts without refining.  Flows that share links by their number then keep one
pace throughout a class, so that it is enough to simulate a representative of each (`quotient`).  `automorphism` says
which operators of a model may change places, so that "table 3 on device 5" and "table 9 on device 2" have one color.
Classes are listed in an order that no numbers decide (`order`), so that strategies which differ in these alone have the
same quotient, and their class a number (`class_key`).
"""
