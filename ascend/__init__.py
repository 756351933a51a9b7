"""The field's nouns, shared by both programs: chips, products, annotations and the node's device-info report."""
