package proc

// Parents is parents.
var Parents = parents
