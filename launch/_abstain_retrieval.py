from absl import flags

PATH = flags.DEFINE_string("path", None, "x")
HARMLESS = ()
def sources(*a): raise SystemExit
