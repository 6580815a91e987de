// expect: a sentence that no compiler says
int main() { return undeclared; }
