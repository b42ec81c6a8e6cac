"""Python objects named on the command line; see `everyturn.objects`."""

from everyturn.objects import FORMS, ObjectImportError, is_reference, load_object

__all__ = ["FORMS", "ObjectImportError", "is_reference", "load_object"]
