"""Scratch from the C library, whose failure is a status and no abort."""

from std.ffi import external_call

from lanes import MutDoubles


struct Cursor(Copyable):
    """Cuts a scratch into arrays that lie on the boundaries vectors like."""

    var next: MutDoubles

    def __init__(out self, scratch: MutDoubles):
        var past = Int(scratch) % ALIGNMENT
        self.next = scratch.unsafe_offset((ALIGNMENT - past) % ALIGNMENT // 8)

    def take(mut self, count: Int) -> MutDoubles:
        """The next count doubles, a multiple of `PAD`."""
        var taken = self.next
        self.next = taken.unsafe_offset(count)
        return taken


comptime ALIGNMENT = 64


def allocate(count: Int) -> Optional[MutDoubles]:
    """Room for count doubles, of any content; empty where memory does not suffice."""
    return external_call["malloc", Optional[MutDoubles]](count * 8)


def release(room: MutDoubles):
    external_call["free", NoneType](room)
