"""The domain types shared by allocator and device plugin: chips, products, annotations and device-info reports."""
