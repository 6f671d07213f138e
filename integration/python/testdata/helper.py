def product(a, b):
    return a * b
