/** Adds two numbers: a function that needs nothing but its input. */
export default ({ a, b }: { a: number; b: number }) => ({ sum: a + b });
