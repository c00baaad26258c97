// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.30;

import {Escrow} from "./Escrow.sol";

/// EscrowFactory creates escrows, and lists those that it has created.
contract EscrowFactory {
    event EscrowDeployed(
        address indexed escrow,
        address indexed payer,
        address indexed payee,
        address arbiter,
        uint256 amount,
        uint256 releaseDelay,
        uint8 approvalsRequired
    );

    address[] private escrows;
    mapping(address => bool) public isEscrow;

    /// Creates an escrow of the caller with the value of the call, and returns its address.
    function createEscrow(address payee, uint256 releaseDelay, uint8 approvalsRequired, address arbiter)
        external
        payable
        returns (address)
    {
        Escrow escrow = new Escrow{value: msg.value}(msg.sender, payee, arbiter, releaseDelay, approvalsRequired);
        return register(escrow, payee, releaseDelay, approvalsRequired, arbiter);
    }

    /// Creates an escrow at an address that depends on this factory, the arguments, the caller and the salt alone.
    function createEscrowDeterministic(
        address payee,
        uint256 releaseDelay,
        uint8 approvalsRequired,
        address arbiter,
        bytes32 salt
    ) external payable returns (address) {
        Escrow escrow =
            new Escrow{value: msg.value, salt: salt}(msg.sender, payee, arbiter, releaseDelay, approvalsRequired);
        return register(escrow, payee, releaseDelay, approvalsRequired, arbiter);
    }

    function register(Escrow escrow, address payee, uint256 releaseDelay, uint8 approvalsRequired, address arbiter)
        private
        returns (address)
    {
        escrows.push(address(escrow));
        isEscrow[address(escrow)] = true;
        emit EscrowDeployed(
            address(escrow), msg.sender, payee, arbiter, msg.value, releaseDelay, approvalsRequired
        );
        return address(escrow);
    }

    /// Returns the number of escrows.
    function getEscrowCount() external view returns (uint256) {
        return escrows.length;
    }

    /// Returns up to limit escrows in the order of their creation, without the first offset ones.
    function getEscrows(uint256 offset, uint256 limit) external view returns (address[] memory page) {
        uint256 all = escrows.length;
        uint256 first = offset < all ? offset : all;
        uint256 n = all - first < limit ? all - first : limit;
        page = new address[](n);
        for (uint256 i = 0; i < n; i++) {
            page[i] = escrows[first + i];
        }
    }
}
