"""What backend authors and our own tests share; part of the installed package."""
