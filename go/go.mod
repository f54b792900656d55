module spofast

go 1.27
