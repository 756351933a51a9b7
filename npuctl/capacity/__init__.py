"""The command ``npuctl capacity``: how many pods, gangs and blocks fit now."""
